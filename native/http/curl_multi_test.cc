#include "http/curl_multi.h"

#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "http/loopback_server.h"
#include "http/request.h"

namespace streamer {
namespace {

const std::string kData(1000, 'x');

std::size_t drop(char*, std::size_t size, std::size_t count, void*) { return size * count; }

class Requests {
 public:
  explicit Requests(const std::string& url, std::size_t count = 1) {
    for (std::size_t i = 0; i < count; ++i) {
      handles_.emplace_back(curl_easy_init());
      curl_easy_setopt(handles_.back().get(), CURLOPT_URL, url.c_str());
      curl_easy_setopt(handles_.back().get(), CURLOPT_WRITEFUNCTION, &drop);
    }
  }

  // Sends all at once. Returns their results, in the order in which they ended.
  std::vector<CURLcode> run(CurlMulti& multi) {
    for (const EasyHandle& handle : handles_) multi.add(handle.get());
    std::vector<CURLcode> results;
    const TimePoint end = after(Clock::now(), 10);
    while (results.size() < handles_.size() && Clock::now() < end) {
      multi.perform();
      while (const auto finished = multi.next_finished()) {
        multi.remove(finished->easy);
        results.push_back(finished->result);
      }
      multi.wait(5);
    }
    return results;
  }

 private:
  std::vector<EasyHandle> handles_;
};

bool falls_to(int count, const LoopbackServer& server) {
  for (int i = 0; i < 2000 && server.open_connections() > count; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return server.open_connections() == count;
}

TEST_CASE("each request that ended is returned once, with its result") {
  const LoopbackServer server(kData);
  CurlMulti multi(new_multi(), 64);
  CHECK(Requests(server.url(), 2).run(multi) == std::vector(2, CURLE_OK));
  CHECK(Requests("http://127.0.0.1:1/").run(multi) == std::vector{CURLE_COULDNT_CONNECT});
  CHECK_FALSE(multi.next_finished());
}

TEST_CASE("all connections stay open after the last request, until they are closed") {
  const LoopbackServer server(kData);
  CurlMulti multi(new_multi(), 64);
  Requests(server.url(), 8).run(multi);
  const int connections = server.connections();
  CHECK(connections > 4);
  CHECK(server.open_connections() == connections);
  Requests(server.url()).run(multi);
  CHECK(server.connections() == connections);
  multi.close_connections();
  CHECK(falls_to(0, server));
  Requests(server.url()).run(multi);
  CHECK(server.connections() == connections + 1);
}

TEST_CASE("no more connections stay open than the limit") {
  const LoopbackServer server(kData);
  CurlMulti multi(new_multi(), 2);
  Requests(server.url(), 8).run(multi);
  CHECK(falls_to(2, server));
}

TEST_CASE("a released handle takes its connections along") {
  const LoopbackServer server(kData);
  CurlMulti first(new_multi(), 64);
  Requests(server.url()).run(first);
  CurlMulti second(first.release(), 64);
  Requests(server.url()).run(second);
  CHECK(server.connections() == 1);
}

TEST_CASE("another thread ends a wait, also one that begins later") {
  CurlMulti multi(new_multi(), 64);
  const TimePoint before = Clock::now();
  multi.wake();
  multi.wait(20'000);
  std::thread waker([&] { multi.wake(); });
  multi.wait(20'000);
  waker.join();
  CHECK(seconds_between(before, Clock::now()) < 10);
}

TEST_CASE("the handle is replaced while other threads wake it") {
  CurlMulti multi(new_multi(), 64);
  std::thread waker([&] {
    for (int i = 0; i < 1000; ++i) multi.wake();
  });
  for (int i = 0; i < 100; ++i) multi.close_connections();
  waker.join();
}

}  // namespace
}  // namespace streamer
