#include "net/latest_time.h"

#include <doctest/doctest.h>

namespace streamer {
namespace {

TEST_CASE("the latest time counts, in whatever order times are recorded") {
  const TimePoint now = Clock::now();
  LatestTime latest;
  CHECK(latest.value() < now);
  latest.note(after(now, 2));
  latest.note(after(now, 1));
  CHECK(latest.value() == after(now, 2));
}

}  // namespace
}  // namespace streamer
