#include "net/request_window.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>

namespace streamer {
namespace {

RequestWindow window_with(int in_flight) {
  RequestWindow window;
  for (int i = 0; i < in_flight; ++i) window.start();
  return window;
}

TEST_CASE("there is no limit before the first outage") { CHECK(window_with(10'000).has_room()); }

TEST_CASE("an outage halves the number of requests in flight, down to one") {
  RequestWindow window = window_with(64);
  window.halve();
  CHECK(window.limit() == doctest::Approx(32));
  for (int i = 0; i < 10; ++i) window.halve();
  CHECK(window.limit() == 1.0);
}

TEST_CASE("an outage halves the previous window if few requests are in flight") {
  RequestWindow window = window_with(20);
  window.halve();
  for (int i = 0; i < 16; ++i) window.finish_otherwise();
  window.halve();
  CHECK(window.limit() == doctest::Approx(2));
}

TEST_CASE("an outage that hits a single request leaves the window unchanged") {
  RequestWindow window = window_with(1);
  window.halve();
  CHECK(window.has_room());
  for (int i = 1; i < 20; ++i) window.start();
  window.halve();
  for (int i = 1; i < 20; ++i) window.finish_otherwise();
  window.halve();
  CHECK(window.limit() == doctest::Approx(10));
}

TEST_CASE("a round without failures adds one request to the window") {
  RequestWindow window = window_with(20);
  window.halve();
  for (int i = 0; i < 10; ++i) window.finish_well(10);
  CHECK(window.limit() == doctest::Approx(11).epsilon(0.01));
}

TEST_CASE("a failure takes a quarter of a request, and four failures take one request") {
  RequestWindow window = window_with(100);
  window.shrink(8);
  CHECK(window.limit() == 99.75);
  for (int i = 0; i < 3; ++i) window.shrink(8);
  CHECK(window.limit() == 99);
}

TEST_CASE("the first failure of a load that has just begun leaves it room to grow") {
  RequestWindow window = window_with(4);
  window.shrink(8);
  CHECK(window.limit() == 63.75);
}

TEST_CASE("failures alone shrink the window to one request") {
  RequestWindow window = window_with(8);
  for (int i = 0; i < 1000; ++i) window.shrink(8);
  CHECK(window.limit() == 1);
}

// Records a hundred requests; `good` of them succeed. `in_flight` requests were under way when each
// was sent.
void record(RequestWindow& window, std::uint32_t in_flight, int good) {
  for (int i = 0; i < 100; ++i) {
    window.start();
    if (i < good) {
      window.finish_well(in_flight);
    } else {
      window.record_failure(in_flight);
      window.finish_otherwise();
    }
  }
}

TEST_CASE("a failure restores the shrunk window if fewer requests fail as often") {
  RequestWindow window = window_with(8);
  window.shrink(8);
  record(window, 64, 50);
  record(window, 16, 50);
  const double before = window.limit();
  window.shrink(16);
  CHECK(window.limit() == before + 0.25);
}

TEST_CASE("a small window shrinks faster, down to pauses, if fewer requests fail less") {
  RequestWindow window = window_with(8);
  record(window, 8, 10);
  record(window, 2, 40);
  for (int i = 0; i < 250; ++i) window.shrink(8);
  const double before = window.limit();
  REQUIRE(before < 8);
  CHECK_FALSE(window.is_least());
  window.shrink(2);
  CHECK(window.limit() == doctest::Approx(std::max(1.0, before - 4 / before)));
  record(window, 1, 90);
  for (int i = 0; i < 300; ++i) window.shrink(2);
  CHECK(window.is_least());
}

TEST_CASE("requests in flight count against the limit") {
  RequestWindow window = window_with(4);
  window.halve();
  CHECK_FALSE(window.has_room());
  window.finish_otherwise();
  window.finish_otherwise();
  window.finish_otherwise();
  CHECK(window.has_room());
  window.start();
  CHECK_FALSE(window.has_room());
}

}  // namespace
}  // namespace streamer
