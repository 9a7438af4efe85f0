#include "http/in_flight_window.h"

#include <doctest/doctest.h>

#include <algorithm>

namespace streamer {
namespace {

constexpr RequestAdvice kDistant{.is_distant = true, .first_byte_s = 0.03};
constexpr double kPeriodS = 0.06;

// A simulated reactor that always has all its requests under way, next to other reactors.
class Reactor {
 public:
  explicit Reactor(unsigned max_size, const RequestAdvice& advice = {}) : window(max_size, advice) {
    window.restart(now_, {});
  }

  // Runs several periods. In each period, the reactor sleeps for a `share` of the time. The speed
  // is `each` bytes per second for each request, and at most `line` for all.
  void run(int periods, double share, double each, double line = 1e12) {
    for (int i = 0; i < periods; ++i) {
      const TimePoint end = after(now_, kPeriodS);
      received_ += kPeriodS * std::min(each * window.size(), line);
      const auto bytes = static_cast<std::uint64_t>(received_);
      window.record_sleep(after(now_, kPeriodS * (1 - share)), end, {bytes, bytes});
      now_ = end;
    }
  }

  InFlightWindow window;

 private:
  TimePoint now_ = Clock::now();
  double received_ = 0;
};

TEST_CASE("slow connections and a sleeping reactor double the window up to the limit") {
  Reactor reactor(30);
  CHECK(reactor.window.size() == 4);
  reactor.run(2, 0.9, 50e6);
  CHECK(reactor.window.size() == 16);
  reactor.run(5, 0.9, 50e6);
  CHECK(reactor.window.size() == 30);
}

TEST_CASE("a distant server gets more requests from the start, within the limit") {
  CHECK(Reactor(30, kDistant).window.size() == 16);
  CHECK(Reactor(8, kDistant).window.size() == 8);
}

TEST_CASE("a window that grew fourfold waits for the result of its trial") {
  Reactor reactor(1000, kDistant);
  reactor.run(2, 0.9, 50e6);
  CHECK(reactor.window.size() == 64);
  reactor.run(3, 0.9, 50e6);  // four waits, and the time to measure
  CHECK(reactor.window.size() == 64);
  reactor.run(5, 0.9, 50e6);
  CHECK(reactor.window.size() > 64);
}

TEST_CASE("behind a full line the window keeps the useful requests, and tries again after a rest") {
  Reactor reactor(64, kDistant);
  reactor.run(2, 0.9, 50e6, 900e6);  // 18 requests fill the line
  CHECK(reactor.window.size() == 64);
  reactor.run(8, 0.9, 50e6, 900e6);
  CHECK(reactor.window.size() >= 18);
  CHECK(reactor.window.size() <= 20);
  reactor.run(25, 0.9, 50e6, 900e6);
  CHECK(reactor.window.size() <= 20);
  reactor.run(10, 0.9, 50e6, 3200e6);  // the line became wider
  CHECK(reactor.window.size() == 64);
}

TEST_CASE("a window that is slower than the smaller one before returns to the smaller size") {
  Reactor reactor(64, kDistant);
  reactor.run(2, 0.9, 50e6);
  CHECK(reactor.window.size() == 64);
  reactor.run(8, 0.9, 10e6);
  CHECK(reactor.window.size() == 16);
}

TEST_CASE("growth that only takes bandwidth from other reactors is undone") {
  InFlightWindow window(64, kDistant);
  TimePoint now = Clock::now();
  window.restart(now, {});
  double own = 0;
  for (int i = 0; i < 10; ++i) {
    // Grows with the window; the other reactors lose as much.
    own += kPeriodS * window.size() * 10e6;
    const auto all = static_cast<std::uint64_t>((i + 1) * kPeriodS * 1e9);
    window.record_sleep(now, after(now, kPeriodS), {static_cast<std::uint64_t>(own), all});
    now = after(now, kPeriodS);
  }
  CHECK(window.size() == 16);
}

TEST_CASE("a busy reactor keeps its window, and so does a reactor with fast connections") {
  Reactor reactor(30);
  reactor.run(20, 0.2, 50e6);
  CHECK(reactor.window.size() == 4);
  reactor.run(20, 0.9, 250e6);
  CHECK(reactor.window.size() == 4);
}

TEST_CASE("a line that brings almost nothing gets no more requests") {
  Reactor reactor(30);
  reactor.run(20, 0.9, 100e3);
  CHECK(reactor.window.size() == 4);
}

TEST_CASE("a later limit holds, and leaves room for at least one request") {
  InFlightWindow window(64, {});
  window.limit(3);
  CHECK(window.size() == 3);
  window.limit(5);
  CHECK(window.size() == 3);
  window.limit(0);
  CHECK(window.size() == 1);
}

TEST_CASE("a shrunk window stays small for a while, and leaves room for at least one request") {
  Reactor reactor(30);
  reactor.window.shrink(2, Clock::now());
  CHECK(reactor.window.size() == 2);
  reactor.run(80, 0.9, 50e6);  // almost five seconds
  CHECK(reactor.window.size() == 2);
  reactor.run(10, 0.9, 50e6);
  CHECK(reactor.window.size() > 2);
  reactor.window.shrink(0, Clock::now());
  CHECK(reactor.window.size() == 1);
}

TEST_CASE("the first size leaves room for each server") {
  CHECK(InFlightWindow(64, {}, 5).size() == 20);
  CHECK(InFlightWindow(64, {}, 65).size() == 64);
}

TEST_CASE("the limit may be below the first size") { CHECK(InFlightWindow(1, {}).size() == 1); }

}  // namespace
}  // namespace streamer
