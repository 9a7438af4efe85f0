// How many requests a reactor keeps in flight: few if each connection is fast, more if each
// connection is slow.
//
// A few connections to a server nearby deliver as fast as a thread reads. More connections only
// spread the work over more memory at a time, which costs cache misses. A store that is far away,
// or that limits each connection (S3: some 90 MB/s after some 30 ms), needs dozens. The first size
// is for each server: caches of other machines, and the storage, do not wait for each other. The
// window doubles if the reactor sleeps most of the time with all requests under way and each
// request is slow. It does not double if each request receives almost nothing.
//
// A load is short, so the window doubles twice before the effect can be measured. After the added
// requests had time to answer, the window keeps as many of them as increased the speed of all
// reactors of the load. On a full line, added requests only take bandwidth from the others. If the
// window shrinks, growth is tried again after a rest, because a network changes.
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

// Bytes received since the start of the load.
struct ReceivedBytes {
  std::uint64_t by_reactor = 0;
  std::uint64_t in_all = 0;  // bytes of all reactors of the load
};

class InFlightWindow {
 public:
  // If the server is known to be slow to answer, the first size is larger.
  InFlightWindow(unsigned max_size, const RequestAdvice& advice, unsigned servers = 1)
      : max_size_(max_size),
        size_(std::min(servers * (advice.is_distant ? kFirstSizeOfDistant : kFirstSize), max_size)),
        settled_after_s_(std::clamp(advice.first_byte_s * kWaits, kObservedS, kLongestSettlingS)) {}

  unsigned size() const { return size_; }

  // Records that the reactor slept from `before` to `after`. It had as many requests under way as
  // the window allows.
  void record_sleep(TimePoint before, TimePoint after, ReceivedBytes received) {
    const bool is_silent = received.by_reactor == received_before_.by_reactor;
    if (is_silent) return restart(after, received);  // there is no speed to measure yet
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

  // Limits the window to `count` permanently, because this machine has no room for more.
  void limit(unsigned count) {
    max_size_ = std::max(1U, std::min(max_size_, count));
    size_ = std::min(size_, max_size_);
  }

  // Limits the window to `count` for a while, because the server serves only this many connections
  // at a time.
  void shrink(unsigned count, TimePoint now) {
    size_ = std::max(1U, std::min(size_, count));
    trial_.reset();
    rests_until_ = after(now, kLongRestS);
  }

  // Discards the observations. The window is not fully used, so a larger one would not be used
  // either.
  void restart(TimePoint now, ReceivedBytes received) {
    asleep_s_ = 0;
    observed_since_ = now;
    received_before_ = received;
  }

 private:
  static constexpr unsigned kFirstSize = 4;
  static constexpr unsigned kFirstSizeOfDistant = 16;
  // Longer than a connection to a server nearby needs to reach its full speed.
  static constexpr double kObservedS = 0.05;
  static constexpr double kMostly = 0.5;
  // For one request: no store is this fast on one connection.
  static constexpr double kFastBytesPerSecond = 128e6;
  // For one request: a line this slow is full, so more requests would only wait longer.
  static constexpr double kSlowestBytesPerSecond = 128 << 10;

  static constexpr unsigned kMostGrowth = 4;  // growth in one trial
  static constexpr double kWaits = 4;  // round trips: to connect, for TLS, and for the first byte
  static constexpr double kLongestSettlingS = 1;
  static constexpr double kJudgedS = 0.15;  // averages out other work on the processors
  static constexpr double kReserve = 1.25;  // because the gain of a trial is not exact
  static constexpr double kRestS = 2;
  static constexpr double kLongRestS = 5;  // each request of a trial costs seconds here

  // A trial of a larger window: the previous size, and the previous speed in bytes per second.
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
    if (size_ >= trial_->size * kMostGrowth) return;  // the trial must be judged first
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
