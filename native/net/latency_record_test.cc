#include "net/latency_record.h"

#include <doctest/doctest.h>

namespace streamer {
namespace {

TEST_CASE("no request counts as slow before there are 20 requests to compare with") {
  LatencyRecord record;
  for (int i = 0; i < 19; ++i) record.add(1);
  CHECK_FALSE(record.slow_after());
  record.add(1);
  CHECK(record.slow_after() == 1.0);
}

TEST_CASE("the percentile ignores the slowest twentieth, and the oldest requests are forgotten") {
  LatencyRecord record;
  for (int i = 0; i < 100; ++i) record.add(i < 96 ? 0.1 : 60);
  CHECK(record.slow_after() == 0.1);
  for (int i = 0; i < 128; ++i) record.add(0.2);
  CHECK(record.slow_after() == 0.2);
}

TEST_CASE(
    "after a change of size, the old limit holds until there are enough requests (regression)") {
  LatencyRecord record;
  record.start_over(2);
  CHECK_FALSE(record.slow_after());
  for (int i = 0; i < 20; ++i) record.add(1);
  record.start_over(2);
  CHECK(record.slow_after() == 2.0);
  record.start_over(0.5);
  CHECK(record.slow_after() == 2.0);  // requests in flight still have the larger size
  for (int i = 0; i < 20; ++i) record.add(0.5);
  CHECK(record.slow_after() == 0.5);
}

TEST_CASE("if more than a twentieth are slow, they still count as slow (regression)") {
  LatencyRecord record;
  for (int i = 0; i < 45; ++i) record.add(i % 8 == 0 ? 4 : 0.4);
  CHECK(*record.slow_after() == doctest::Approx(1.2));
}

}  // namespace
}  // namespace streamer
