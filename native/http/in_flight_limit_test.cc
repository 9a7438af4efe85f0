#include "http/in_flight_limit.h"

#include <doctest/doctest.h>

namespace streamer {
namespace {

constexpr unsigned kFirst = 4;  // requests at a time of a new reactor

InFlightLimit limit_with(HttpCounters& counters) { return {64, RequestAdvice{}, 1, counters}; }

// Sleeps nearly all of the time, while each of these requests receives 50 MB/s.
void sleep(InFlightLimit& limit, unsigned in_flight) {
  TimePoint now = Clock::now();
  std::uint64_t received = 0;
  for (int i = 0; i < 3; ++i) {
    received += in_flight * 3'000'000;
    limit.record_sleep(now, after(now, 0.06), received, in_flight);
    now = after(now, 0.06);
  }
}

TEST_CASE("requests are added while all that are allowed are slow") {
  HttpCounters counters;
  InFlightLimit limit = limit_with(counters);
  CHECK(limit.has_room(kFirst - 1));
  CHECK_FALSE(limit.has_room(kFirst));
  sleep(limit, kFirst - 1);
  CHECK_FALSE(limit.has_room(kFirst));
  sleep(limit, kFirst);
  CHECK(limit.has_room(kFirst));
}

TEST_CASE("received bytes of all reactors are added up, each byte once") {
  HttpCounters counters;
  InFlightLimit one = limit_with(counters);
  InFlightLimit other = limit_with(counters);
  const TimePoint now = Clock::now();
  one.record_sleep(now, now, 100, 1);
  other.record_sleep(now, now, 1000, 1);
  one.record_sleep(now, now, 250, 1);
  CHECK(counters.received_bytes == 1250);
}

TEST_CASE("without further descriptors no connection is added for the rest of the load") {
  HttpCounters counters;
  counters.reactors.start(2);
  InFlightLimit limit = limit_with(counters);
  CHECK(limit.keep_to_open(2));
  CHECK_FALSE(limit.is_ending());
  sleep(limit, 2);
  CHECK(limit.has_room(1));
  CHECK_FALSE(limit.has_room(2));
}

TEST_CASE("a reactor without any descriptor leaves its blocks to others, and the last one fails") {
  HttpCounters counters;
  counters.reactors.start(2);
  InFlightLimit first = limit_with(counters);
  InFlightLimit last = limit_with(counters);
  CHECK(first.keep_to_open(0));
  CHECK(first.is_ending());
  CHECK(first.keep_to_open(0));  // it counts once
  CHECK_FALSE(last.keep_to_open(0));
  CHECK_FALSE(last.is_ending());
}

TEST_CASE("a reactor uses as many connections as are served, and ends only if none is") {
  HttpCounters counters;
  counters.reactors.start(2);
  InFlightLimit limit = limit_with(counters);
  limit.keep_to_served(2, Clock::now());
  CHECK(limit.has_room(1));
  CHECK_FALSE(limit.has_room(2));
  CHECK_FALSE(limit.is_ending());
  limit.keep_to_served(0, Clock::now());
  CHECK(limit.is_ending());
  InFlightLimit last = limit_with(counters);
  last.keep_to_served(0, Clock::now());
  CHECK_FALSE(last.is_ending());
  CHECK(last.has_room(0));
}

}  // namespace
}  // namespace streamer
