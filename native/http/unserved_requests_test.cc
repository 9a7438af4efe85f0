#include "http/unserved_requests.h"

#include <doctest/doctest.h>

#include <string>
#include <utility>

#include "http/driven_requests_fixture.h"

namespace streamer {
namespace {

const std::string kData = "0123456789abcdefghij";
constexpr double kLongS = WaitingRequests::kLongWaitS;

// A server that does not answer the first request.
class UnservedRequest {
 public:
  // `is_other_served`: a second connection is answered, and then idle.
  explicit UnservedRequest(bool is_other_served, int times_unserved = 0) {
    Block block = driven.block(0, 10);
    block.times_unserved = times_unserved;
    transfer = &driven.send(std::move(block), started);
    driven.drive_until([this] { return server_.requests() == 1; });
    if (!is_other_served) return;
    HttpTransfer& other = driven.send(driven.block(10, 12));
    driven.next_ended();
    driven.requests().release(other, true);
  }

  UnservedRequests::Cancelled cancel(double later_s) {
    return unserved.cancel(after(started, later_s));
  }
  bool are_others_told(double later_s) {
    return driven.endpoint()->waiting->are_some(after(started, later_s));
  }

 private:
  LoopbackServer server_{kData, first_faults({LoopbackFault::kSilent})};

 public:
  DrivenRequests driven{server_, kData.size()};
  UnservedRequests unserved{driven.requests()};
  const TimePoint started = Clock::now();
  HttpTransfer* transfer = nullptr;
};

TEST_CASE("a request that is not served while another connection is goes back to the queue") {
  UnservedRequest request(true);
  CHECK(request.cancel(kLongS - 0.1).requests == 0);
  CHECK_FALSE(request.are_others_told(kLongS));
  const auto [requests, blocks] = request.cancel(kLongS + 0.1);
  CHECK(requests == 1);
  REQUIRE(blocks.size() == 1);
  CHECK(blocks[0].end == 10);
  CHECK(blocks[0].prefers_open_connection);
  CHECK(blocks[0].times_unserved == 1);
  CHECK(request.driven.requests().size() == 0);
  CHECK(request.driven.requests().connections() == 1);
}

TEST_CASE("the limit doubles each time") {
  UnservedRequest request(true, 2);
  CHECK(request.cancel(4 * kLongS - 0.1).requests == 0);
  CHECK(request.cancel(4 * kLongS + 0.1).requests == 1);
}

TEST_CASE("the only connection is kept, but owners of idle ones learn of it") {
  UnservedRequest request(false);
  CHECK(request.cancel(10 * kLongS).requests == 0);
  CHECK(request.driven.requests().size() == 1);
  CHECK(request.are_others_told(10 * kLongS));
}

TEST_CASE("an answer on an older connection, to anyone, shows that the server serves others") {
  UnservedRequest request(false);
  request.driven.endpoint()->answered_again.note(after(request.started, -kLongS - 0.1));
  CHECK(request.cancel(2 * kLongS).requests == 0);
  request.driven.endpoint()->answered_again.note(after(request.started, -kLongS + 0.1));
  CHECK(request.cancel(2 * kLongS).requests == 1);
}

TEST_CASE("a request of a slow server may wait four times as long as usual") {
  UnservedRequest request(true);
  record_requests(*request.driven.endpoint(), 20, kLongS);
  CHECK(request.cancel(4 * kLongS - 0.1).requests == 0);
  CHECK(request.cancel(4 * kLongS + 0.1).requests == 1);
}

TEST_CASE("a request that was answered before it stalled is served") {
  const LoopbackServer server(kData, first_faults({LoopbackFault::kSlow, LoopbackFault::kNone}));
  DrivenRequests driven(server, kData.size());
  UnservedRequests unserved(driven.requests());
  HttpTransfer& slow = driven.send(driven.block(0, 10));
  REQUIRE(driven.drive_until([&] { return !slow.was_silent(); }));
  driven.endpoint()->answered_again.note(Clock::now());
  CHECK(unserved.cancel(after(Clock::now(), 10 * kLongS)).requests == 0);
}

TEST_CASE("of a request and its duplicate, the duplicate is given up first, and no block with it") {
  const LoopbackServer server(kData, [](int) { return LoopbackFault::kSilent; });
  DrivenRequests driven(server, kData.size());
  UnservedRequests unserved(driven.requests());
  HttpTransfer& slow = driven.send(driven.block(0, 10));
  HttpTransfer& duplicate = driven.duplicate(slow);
  REQUIRE(driven.drive_until([&] { return server.requests() == 2; }));
  driven.endpoint()->answered_again.note(Clock::now());
  const auto [requests, blocks] = unserved.cancel(after(Clock::now(), kLongS + 0.1));
  CHECK(requests == 1);
  CHECK(blocks.empty());
  CHECK(driven.requests().has(slow));
  CHECK_FALSE(driven.requests().has(duplicate));
  CHECK(unserved.cancel(after(Clock::now(), kLongS + 0.1)).blocks.size() == 1);
}

}  // namespace
}  // namespace streamer
