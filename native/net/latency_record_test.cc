#include "net/latency_record.h"

#include <doctest/doctest.h>

namespace streamer {
namespace {

TEST_CASE("nothing is called slow before there are 20 requests to compare with") {
  LatencyRecord record;
  for (int i = 0; i < 19; ++i) record.add(1);
  CHECK_FALSE(record.percentile_95());
  record.add(1);
  CHECK(record.percentile_95() == 1.0);
}

TEST_CASE("the percentile ignores the slowest twentieth and forgets the oldest") {
  LatencyRecord record;
  for (int i = 0; i < 100; ++i) record.add(i < 96 ? 0.1 : 60);
  CHECK(record.percentile_95() == 0.1);
  for (int i = 0; i < 128; ++i) record.add(0.2);
  CHECK(record.percentile_95() == 0.2);
}

}  // namespace
}  // namespace streamer
