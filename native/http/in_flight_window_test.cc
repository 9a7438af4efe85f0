#include "http/in_flight_window.h"

#include <doctest/doctest.h>

namespace streamer {
namespace {

// `count` periods of 60 ms, a `share` of each asleep, at a rate for each request in flight.
void run(InFlightWindow& window, int count, double share, double bytes_per_second_each) {
  TimePoint now = Clock::now();
  double received = 0;
  window.restart(now, 0);
  for (int i = 0; i < count; ++i) {
    const TimePoint end = after(now, 0.06);
    received += 0.06 * bytes_per_second_each * window.size();
    window.record_sleep(after(now, 0.06 * (1 - share)), end, static_cast<std::uint64_t>(received));
    now = end;
  }
}

TEST_CASE("slow connections that leave the reactor asleep double the window up to the limit") {
  InFlightWindow window(30);
  CHECK(window.size() == 4);
  run(window, 2, 0.9, 50e6);
  CHECK(window.size() == 16);
  run(window, 5, 0.9, 50e6);
  CHECK(window.size() == 30);
}

TEST_CASE("of a distant server more is asked from the start, within the limit") {
  CHECK(InFlightWindow(30, true).size() == 16);
  CHECK(InFlightWindow(8, true).size() == 8);
}

TEST_CASE("a busy reactor keeps its window, and so does one with fast connections") {
  InFlightWindow window(30);
  run(window, 20, 0.2, 50e6);
  CHECK(window.size() == 4);
  run(window, 20, 0.9, 250e6);
  CHECK(window.size() == 4);
}

TEST_CASE("a line that is full gets no more requests") {
  InFlightWindow window(30);
  run(window, 20, 0.9, 100e3);
  CHECK(window.size() == 4);
}

TEST_CASE("a limit learnt later holds, and leaves room for one") {
  InFlightWindow window(64);
  window.limit(3);
  CHECK(window.size() == 3);
  window.limit(5);
  CHECK(window.size() == 3);
  window.limit(0);
  CHECK(window.size() == 1);
}

TEST_CASE("the limit may be below the first size") { CHECK(InFlightWindow(1).size() == 1); }

}  // namespace
}  // namespace streamer
