#include "http/control_request.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "base/clock.h"
#include "http/kept_connections.h"
#include "http/loopback_server.h"
#include "http/request.h"

namespace streamer {
namespace {

const std::string kData(100'000, 'x');

ControlRequest request_to(const LoopbackServer& server) {
  start_libcurl();
  ControlRequest request;
  request.target.url = server.url();
  request.most_bytes = kData.size();
  request.connect_timeout_s = request.timeout_s = 10;
  return request;
}

bool never() { return false; }

TEST_CASE("an answer has its status, headers and body, and leaves its connection to the next") {
  const LoopbackServer server(kData);
  const ControlRequest request = request_to(server);
  for (int i = 0; i < 3; ++i) {
    const auto answer = ask(request, never);
    REQUIRE(answer);
    CHECK(answer->status == 200);
    CHECK(answer->body == kData);
    CHECK(std::count(answer->headers.begin(), answer->headers.end(), "ETag: \"v1\"") == 1);
  }
  CHECK(server.connections() == 1);
  KeptConnections::of_process().release();
}

TEST_CASE("the answer to a HEAD has no body, whatever length it tells") {
  const LoopbackServer server(kData);
  ControlRequest request = request_to(server);
  request.is_head = true;
  request.most_bytes = 0;
  const auto answer = ask(request, never);
  REQUIRE(answer);
  CHECK(answer->body.empty());
  CHECK(std::count(answer->headers.begin(), answer->headers.end(), "Content-Length: 100000") == 1);
}

TEST_CASE("an answer with more bytes than allowed is none") {
  const LoopbackServer server(kData);
  ControlRequest request = request_to(server);
  request.most_bytes = kData.size() - 1;
  CHECK_FALSE(ask(request, never));
}

TEST_CASE("a body that may be cut is, and its connection is not kept") {
  KeptConnections::of_process().release();
  const LoopbackServer server(kData);
  ControlRequest request = request_to(server);
  request.may_be_cut = true;
  request.most_bytes = 1000;
  for (int i = 0; i < 2; ++i) {
    const auto answer = ask(request, never);
    REQUIRE(answer);
    CHECK(answer->status == 200);
    CHECK(answer->body == kData.substr(0, 1000));
  }
  CHECK(server.connections() == 2);
  request.most_bytes = kData.size();
  REQUIRE(ask(request, never));
  CHECK(KeptConnections::of_process().release() == 1);
}

TEST_CASE("an answer with an error status is an answer; a connection that is closed gives none") {
  const LoopbackServer server(kData, [](int number) {
    return number == 0 ? LoopbackFault::kUnavailable : LoopbackFault::kCutAtOnce;
  });
  const ControlRequest request = request_to(server);
  const auto refused = ask(request, never);
  REQUIRE(refused);
  CHECK(refused->status == 503);
  KeptConnections::of_process().release();
  CHECK_FALSE(ask(request, never));
}

TEST_CASE("a server that takes no connections, or keeps its silence, ends the wait in time") {
  ControlRequest request;
  start_libcurl();
  request.target.url = "http://127.0.0.1:1/object";
  request.connect_timeout_s = request.timeout_s = 10;
  CHECK_FALSE(ask(request, never));

  const LoopbackServer server(kData, [](int) { return LoopbackFault::kSilent; });
  request.target.url = server.url();
  request.timeout_s = 0.2;
  CHECK_FALSE(ask(request, never));
  request.timeout_s = 60;
  const TimePoint began = Clock::now();
  CHECK_FALSE(ask(request, [] { return true; }));
  CHECK(seconds_between(began, Clock::now()) < 30);
}

}  // namespace
}  // namespace streamer
