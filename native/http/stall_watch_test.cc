#include "http/stall_watch.h"

#include <doctest/doctest.h>

#include <chrono>

namespace streamer {
namespace {

using std::chrono::seconds;

TEST_CASE("a transfer has stalled if it is slower than the required speed") {
  struct Case {
    const char* name;
    int seconds;
    std::uint64_t own;
    std::uint64_t all;
    std::size_t active;
    bool has_stalled;
  };
  // The required speed is 1000 bytes a second, over 10 s.
  for (const Case& each : {
           Case{"fast enough", 11, 11'000, 11'000, 1, false},
           Case{"a byte below", 11, 10'999, 10'999, 1, true},
           Case{"slow, but not for long enough", 10, 0, 0, 1, false},
           Case{"the line is slow, and the transfer has its share", 11, 3'000, 12'000, 4, false},
           Case{"the line is slow, the transfer has 1/4 of its share", 11, 750, 12'000, 4, false},
           Case{"the line is slow, and the transfer has less", 11, 749, 12'000, 4, true},
           Case{"all together are too slow", 11, 5'000, 10'999, 4, true},
           Case{"others are fast, and the transfer is fast enough", 11, 11'000, 990'000, 2, false},
       }) {
    CAPTURE(each.name);
    const TimePoint start = Clock::now();
    StallWatch watch({.stall_timeout_s = 10, .stall_bytes_per_s = 1'000});
    watch.start(start, 500, 70'000);
    CHECK(watch.has_stalled(start + seconds(each.seconds), 500 + each.own, 70'000 + each.all,
                            each.active) == each.has_stalled);
  }
}

TEST_CASE("each measurement is judged separately") {
  const TimePoint start = Clock::now();
  StallWatch watch({.stall_timeout_s = 10, .stall_bytes_per_s = 1'000});
  watch.start(start, 0, 0);
  CHECK_FALSE(watch.has_stalled(start + seconds(11), 900'000, 900'000, 1));
  CHECK_FALSE(watch.has_stalled(start + seconds(20), 900'000, 900'000, 1));
  CHECK(watch.has_stalled(start + seconds(22), 900'000, 900'000, 1));
}

}  // namespace
}  // namespace streamer
