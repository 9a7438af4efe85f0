// How many requests a reactor keeps in flight: few where each connection is fast, more where each
// is slow.
//
// A server nearby fills a few connections as fast as a thread empties them; every further one only
// spreads the work over more memory at a time, which costs cache misses. A store far away, or one
// that limits each connection (S3: some 90 MB/s after some 30 ms), wants dozens. The reactor can
// tell them apart: while it sleeps most of the time although all its requests are under way, and
// each of them brings little, the window doubles; not where each brings next to nothing.
//
// A load is short, so it doubles twice before anybody can tell what that brought. Once the requests
// that were added have had time to answer, the window keeps as many of them as were worth it, by
// what all reactors of the load receive: behind a line that is full, they take from each other.
// Where fewer would do it is tried again after a rest, because a network changes.
//
// Not thread-safe; each reactor has its own.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "net/endpoint.h"

namespace streamer {

// Since the start of the load.
struct ReceivedBytes {
  std::uint64_t by_reactor = 0;
  std::uint64_t in_all = 0;  // by all reactors of the load
};

class InFlightWindow {
 public:
  // Of a server whose answers are known to be long in coming, more are asked for from the start.
  InFlightWindow(unsigned max_size, const RequestAdvice& advice)
      : max_size_(max_size),
        size_(std::min(advice.is_distant ? kFirstSizeOfDistant : kFirstSize, max_size)),
        settled_after_s_(std::clamp(advice.first_byte_s * kWaits, kObservedS, kLongestSettlingS)) {}

  unsigned size() const { return size_; }

  // The reactor slept from `before` to `after`, all requests the window allows being under way.
  void record_sleep(TimePoint before, TimePoint after, ReceivedBytes received) {
    const bool is_silent = received.by_reactor == received_before_.by_reactor;
    if (is_silent) return restart(after, received);  // what comes before the first byte is no speed
    asleep_s_ += seconds_between(before, after);
    const double observed_s = seconds_between(observed_since_, after);
    const bool is_judged = trial_ && observed_since_ >= trial_->settled_at;
    if (observed_s < (is_judged ? kJudgedS : kObservedS)) return;
    const double in_all =
        static_cast<double>(received.in_all - received_before_.in_all) / observed_s;
    const double each =
        static_cast<double>(received.by_reactor - received_before_.by_reactor) / observed_s / size_;
    if (is_judged) judge(in_all, after);
    const bool is_slow = each < kFastBytesPerSecond && each > kSlowestBytesPerSecond;
    if (is_slow && asleep_s_ > observed_s * kMostly) grow({size_, each, in_all}, after);
    restart(after, received);
  }

  // No more than `count` at a time from now on; there is no room for more on this machine.
  void limit(unsigned count) {
    max_size_ = std::max(1U, std::min(max_size_, count));
    size_ = std::min(size_, max_size_);
  }

  // The server serves `count` connections at a time: no more than that until a while has passed.
  void shrink(unsigned count, TimePoint now) {
    size_ = std::max(1U, std::min(size_, count));
    trial_.reset();
    rests_until_ = after(now, kLongRestS);
  }

  // Forget what was observed: not all of the window is in use, so more room would not be either.
  void restart(TimePoint now, ReceivedBytes received) {
    asleep_s_ = 0;
    observed_since_ = now;
    received_before_ = received;
  }

 private:
  static constexpr unsigned kFirstSize = 4;
  static constexpr unsigned kFirstSizeOfDistant = 16;
  static constexpr double kObservedS =
      0.05;  // longer than a connection takes to reach its speed nearby
  static constexpr double kMostly = 0.5;
  static constexpr double kFastBytesPerSecond =
      128e6;  // per request: above what any store gives a connection
  // Per request: a line this slow is full, and more requests would only wait for it longer.
  static constexpr double kSlowestBytesPerSecond = 128 << 10;

  static constexpr unsigned kMostGrowth = 4;  // in one trial
  static constexpr double kWaits = 4;         // a connection, its TLS, and the first byte
  static constexpr double kLongestSettlingS = 1;
  static constexpr double kJudgedS = 0.15;  // other work on the processors evens out
  static constexpr double kReserve = 1.25;  // what a trial brought is not exact
  static constexpr double kRestS = 2;
  static constexpr double kLongRestS = 5;  // a try costs each request of it seconds

  // A window that is larger than it was, and what it brought before, in bytes per second.
  struct Trial {
    unsigned size;
    double each;
    double in_all;
    TimePoint settled_at{};
  };

  void judge(double in_all, TimePoint now) {
    const double paid = std::max(0.0, in_all - trial_->in_all) / trial_->each * kReserve;
    const double wanted = std::ceil(trial_->size + paid);
    trial_.reset();
    if (wanted >= size_) return;
    size_ = static_cast<unsigned>(wanted);
    rests_until_ = after(now, kRestS);
  }

  void grow(Trial before, TimePoint now) {
    if (size_ == max_size_ || now < rests_until_) return;
    if (!trial_) trial_ = before;
    if (size_ >= trial_->size * kMostGrowth) return;  // that has to be judged first
    size_ = std::min(size_ * 2, max_size_);
    trial_->settled_at = after(now, settled_after_s_);
  }

  unsigned max_size_;
  unsigned size_;
  const double settled_after_s_;
  std::optional<Trial> trial_;
  TimePoint rests_until_{};
  double asleep_s_ = 0;
  ReceivedBytes received_before_{};
  TimePoint observed_since_ = Clock::now();
};

}  // namespace streamer
