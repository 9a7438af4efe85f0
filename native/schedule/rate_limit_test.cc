#include "schedule/rate_limit.h"

#include <doctest/doctest.h>

namespace streamer {
namespace {

// Returns the bytes handed out within `seconds`, in blocks, to a reader that asks as soon as it
// may.
std::uint64_t handed_out(RateLimit& limit, TimePoint begin, double seconds, std::uint64_t block) {
  std::uint64_t total = 0;
  for (TimePoint now = begin; seconds_between(begin, now) < seconds;) {
    if (const auto later = limit.closed_until(now)) {
      now = *later;
      continue;
    }
    limit.record(block, now);
    total += block;
  }
  return total;
}

TEST_CASE("the average is right for small blocks and for blocks that take a second") {
  for (const std::uint64_t block : {10'000U, 1'000'000U}) {
    RateLimit limit(1'000'000);
    const std::uint64_t total = handed_out(limit, Clock::now(), 10, block);
    CHECK(total >= 10'000'000);
    CHECK(total <= 10'000'000 + 50'000 + block);
  }
}

TEST_CASE("unused time is not made up for") {
  RateLimit limit(1'000'000);
  const TimePoint begin = Clock::now();
  limit.record(1, begin);
  CHECK(handed_out(limit, after(begin, 100), 1, 10'000) <= 1'060'000);
}

TEST_CASE("without a limit no reader waits") {
  RateLimit limit(0);
  const TimePoint now = Clock::now();
  limit.record(UINT64_MAX, now);
  CHECK_FALSE(limit.closed_until(now));
}

}  // namespace
}  // namespace streamer
