#include "net/waiting_requests.h"

#include <doctest/doctest.h>

#include <optional>

namespace streamer {
namespace {

TEST_CASE("requests of the engine count as waiting as long as this is recorded") {
  WaitingRequests requests;
  const TimePoint now = Clock::now();
  CHECK(!requests.are_some(now));
  requests.note(now);
  CHECK(requests.are_some(after(now, 1)));
  CHECK(!requests.are_some(after(now, 2)));
}

TEST_CASE("other requests count as waiting from two seconds on until they end") {
  WaitingRequests requests;
  std::optional<WaitingRequests::Foreign> first(std::in_place, requests);
  std::optional<WaitingRequests::Foreign> second(std::in_place, requests);
  const TimePoint now = Clock::now();
  CHECK(!requests.are_some(after(now, 1)));
  CHECK(requests.are_some(after(now, 2)));
  first.reset();
  CHECK(requests.are_some(after(now, 2)));
  second.reset();
  CHECK(!requests.are_some(after(now, 2)));
}

}  // namespace
}  // namespace streamer
