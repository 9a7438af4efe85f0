#include "http/kept_connections.h"

#include <doctest/doctest.h>

#include <chrono>
#include <thread>

#include "base/descriptors.h"
#include "base/forked_child_fixture.h"

namespace streamer {
namespace {

using std::chrono::milliseconds;

const auto kOneServer = std::make_shared<Endpoint>("https://one");
const auto kOtherServer = std::make_shared<Endpoint>("https://other");

bool falls_to(std::size_t count, KeptConnections& connections) {
  for (int i = 0; i < 1000 && connections.kept() > count; ++i) {
    std::this_thread::sleep_for(milliseconds(5));
  }
  return connections.kept() == count;
}

TEST_CASE(
    "the connection to a server that was kept last is used by the next reader of this server") {
  KeptConnections connections;
  MultiHandle first = connections.take(*kOneServer);
  MultiHandle second = connections.take(*kOneServer);
  CURLM* const last = second.get();
  connections.keep(std::move(first), kOneServer);
  connections.keep(std::move(second), kOneServer);
  CHECK(connections.take(*kOtherServer).get() != last);
  CHECK(connections.kept() == 2);
  CHECK(connections.take(*kOneServer).get() == last);
  CHECK(connections.kept() == 1);
  CHECK(connections.release() == 1);
}

TEST_CASE("connections to one server are closed, and the others are kept") {
  KeptConnections connections;
  for (const auto& server : {kOneServer, kOtherServer, kOneServer}) {
    connections.keep(new_multi(), server);
  }
  connections.close(*kOneServer);
  CHECK(connections.kept() == 1);
  connections.close(*kOneServer);
  CHECK(connections.release() == 1);
}

TEST_CASE("unused connections are closed, including those that are kept later") {
  KeptConnections connections(milliseconds(20));
  for (int i = 0; i < 2; ++i) {
    connections.keep(connections.take(*kOneServer), kOneServer);
    CHECK(falls_to(0, connections));
  }
  CHECK(connections.release() == 0);
}

TEST_CASE("only connections to a server that makes another request wait are closed") {
  const auto busy_server = std::make_shared<Endpoint>("https://busy");
  KeptConnections connections;
  connections.keep(new_multi(), busy_server);
  connections.keep(new_multi(), kOtherServer);
  busy_server->waiting->note(Clock::now());
  CHECK(falls_to(1, connections));
  connections.close(*kOtherServer);
  CHECK(connections.release() == 0);
}

TEST_CASE("one connection per reactor of a machine is kept, not one for each of ever new servers") {
  KeptConnections connections;
  for (std::size_t i = 0; i < KeptConnections::kMostHandles + 3; ++i) {
    const auto server = std::make_shared<Endpoint>("https://" + std::to_string(i));
    connections.keep(connections.take(*server), server);
  }
  CHECK(connections.release() == KeptConnections::kMostHandles);
}

TEST_CASE("no connection is kept if the program needs the descriptors for its own files") {
  KeptConnections connections;
  MultiHandle multi = connections.take(*kOneServer);
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  const int lowest = eventfd(0, EFD_CLOEXEC);
  REQUIRE(lowest > 0);
  close(lowest);
  rlimit few = before;
  few.rlim_cur = 2 * static_cast<rlim_t>(lowest) - 1;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
  connections.keep(std::move(multi), kOneServer);
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(connections.kept() == 0);
}

TEST_CASE("a forked child has none of its parent's") {
  KeptConnections& of_parent = KeptConnections::of_process();
  of_parent.keep(of_parent.take(*kOneServer), kOneServer);
  CHECK(exit_status_of_child(
            [] { return static_cast<int>(KeptConnections::of_process().kept()); }) == 0);
  CHECK(of_parent.release() >= 1);
}

}  // namespace
}  // namespace streamer
