#include "http/hedged_requests.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "http/driven_requests_fixture.h"

namespace streamer {
namespace {

const std::string kData = "0123456789abcdefghij";
constexpr double kUsualS = 0.01;
constexpr double kSlowS = 1;  // a hundred times as long

// A request that is slow, of a server whose usual time is known.
class SlowRequest {
 public:
  explicit SlowRequest(std::vector<LoopbackFault> faults, double budget_percent = 100)
      : server_(kData, first_faults(std::move(faults))), budget_(budget_percent) {
    record_requests(endpoint(), 20, kUsualS);
    budget_.record_request(kData.size());
    driven.drive_until([this] { return server_.requests() > 0; });
  }

  Endpoint& endpoint() { return *driven.endpoint(); }
  RequestsInFlight& requests() { return driven.requests(); }

 private:
  LoopbackServer server_;
  HedgeBudget budget_;

 public:
  HttpCounters counters;
  DrivenRequests driven{server_, kData.size()};
  const TimePoint now = Clock::now();
  HttpTransfer& slow = driven.send(driven.block(0, 10), after(now, -kSlowS));
  HedgedRequests hedged{driven.requests(), budget_, counters};
};

TEST_CASE("a slow request gets a duplicate, whose bytes complete its block") {
  SlowRequest request({LoopbackFault::kSilent});
  request.hedged.send(request.now);
  CHECK(request.requests().size() == 2);
  CHECK(request.counters.hedges == 1);
  CHECK(request.counters.requests == 1);
  const DrivenRequests::Ended ended = request.driven.next_ended();
  REQUIRE(ended.transfer != nullptr);
  CHECK(ended.transfer != &request.slow);
  REQUIRE_FALSE(ended.error);
  const Block block = request.hedged.complete(request.requests().release(*ended.transfer, true));
  CHECK(block.begin == 0);
  CHECK(block.received == 10);
  CHECK(request.driven.bytes().substr(0, 10) == kData.substr(0, 10));
  CHECK(request.requests().size() == 0);
}

TEST_CASE("one duplicate is enough, also if it is slow itself") {
  SlowRequest request({LoopbackFault::kSilent, LoopbackFault::kSilent});
  for (const double later_s : {0.0, kSlowS, 2 * kSlowS}) {
    request.hedged.send(after(request.now, later_s));
    CHECK(request.requests().size() == 2);
  }
}

TEST_CASE("a request within the usual time gets no duplicate") {
  SlowRequest request({LoopbackFault::kSilent});
  request.hedged.send(after(request.now, kUsualS / 2 - kSlowS));
  CHECK(request.requests().size() == 1);
}

TEST_CASE("no duplicate is sent above the budget, and the endpoint keeps its room") {
  SlowRequest request({LoopbackFault::kSilent}, 10);
  open_outage(request.endpoint());
  request.requests().cancel_all();
  const TimePoint later = after(request.now, 60);
  request.endpoint().finish_well(request.endpoint().try_start(later).value(), 1, false, later);
  REQUIRE_FALSE(request.endpoint().outage());
  request.driven.send(request.driven.block(0, 10), later);
  for (int i = 0; i < 100; ++i) request.hedged.send(after(later, kSlowS));
  CHECK(request.requests().size() == 1);
  CHECK(request.counters.hedges == 0);
  CHECK(request.endpoint().try_start(after(later, kSlowS)));
}

TEST_CASE("no duplicate is sent during an outage") {
  SlowRequest request({LoopbackFault::kSilent});
  open_outage(request.endpoint());
  request.hedged.send(after(request.now, 60));
  CHECK(request.requests().size() == 1);
}

TEST_CASE("no duplicate is sent if all transfers are in use, and the slowest goes first") {
  SlowRequest request(std::vector(4, LoopbackFault::kSilent));
  HttpTransfer& slowest =
      request.driven.send(request.driven.block(10, 12), after(request.now, -2 * kSlowS));
  request.driven.send(request.driven.block(12, 14), request.now);
  REQUIRE(request.requests().size() == DrivenRequests::kMaxInFlight - 1);
  request.hedged.send(request.now);
  CHECK(request.requests().size() == DrivenRequests::kMaxInFlight);
  CHECK(request.requests().flight_of(slowest).has_duplicate());
  CHECK_FALSE(request.requests().flight_of(request.slow).has_duplicate());
}

}  // namespace
}  // namespace streamer
