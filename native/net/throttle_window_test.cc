#include "net/throttle_window.h"

#include <doctest/doctest.h>

#include <vector>

namespace streamer {
namespace {

std::vector<ThrottleWindow::Epoch> start_many(ThrottleWindow& window, int count) {
  std::vector<ThrottleWindow::Epoch> started;
  for (int i = 0; i < count; ++i) started.push_back(window.start());
  return started;
}

TEST_CASE("there is no limit before the first throttle") {
  ThrottleWindow window;
  start_many(window, 10'000);
  CHECK(window.has_room());
}

TEST_CASE("a storm of refusals to one burst halves once") {
  ThrottleWindow window;
  for (const auto epoch : start_many(window, 64)) window.finish_throttled(epoch);
  CHECK(window.limit() == doctest::Approx(32));
}

TEST_CASE("refusals after a decrease halve again, down to one request") {
  ThrottleWindow window;
  start_many(window, 16);
  for (int i = 0; i < 10; ++i) window.finish_throttled(window.start());
  CHECK(window.limit() == 1.0);
  ThrottleWindow lone;
  lone.finish_throttled(lone.start());
  CHECK(lone.has_room());
}

TEST_CASE("a round that went well adds one") {
  ThrottleWindow window;
  for (const auto epoch : start_many(window, 20)) window.finish_throttled(epoch);
  CHECK(window.limit() == doctest::Approx(10));
  for (int i = 0; i < 10; ++i) {
    window.start();
    window.finish_well();
  }
  CHECK(window.limit() == doctest::Approx(11).epsilon(0.01));
}

TEST_CASE("what is in flight counts against the limit") {
  ThrottleWindow window;
  for (const auto epoch : start_many(window, 4)) window.finish_throttled(epoch);
  CHECK(window.limit() == doctest::Approx(2));
  window.start();
  CHECK(window.has_room());
  window.start();
  CHECK_FALSE(window.has_room());
  window.finish_otherwise();
  CHECK(window.has_room());
}

}  // namespace
}  // namespace streamer
