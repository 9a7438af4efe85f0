// How many requests a reactor keeps in flight: few where each connection is fast, more where each
// is slow.
//
// A server nearby fills a few connections as fast as a thread empties them; every further one only
// spreads the work over more memory at a time, which costs cache misses. A store far away, or one
// that limits each connection (S3: some 90 MB/s after some 30 ms), wants dozens. The reactor can
// tell them apart: while it sleeps most of the time although all its requests are under way, and
// each of them brings little, the window doubles; not where each brings next to nothing.
//
// Not thread-safe; each reactor has its own.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace streamer {

class InFlightWindow {
 public:
  // `is_distant`: answers are known to be long in coming (net/endpoint.h), so that more are asked
  // for from the start.
  explicit InFlightWindow(unsigned max_size, bool is_distant = false)
      : max_size_(max_size),
        size_(std::min(is_distant ? kFirstSizeOfDistant : kFirstSize, max_size)) {}

  unsigned size() const { return size_; }

  // The reactor slept from `before` to `after`, all requests the window allows being under way. It
  // has received `received_bytes` since its start.
  void record_sleep(TimePoint before, TimePoint after, std::uint64_t received_bytes) {
    asleep_s_ += seconds_between(before, after);
    const double observed_s = seconds_between(observed_since_, after);
    if (observed_s < kObservedS) return;
    const auto bytes = static_cast<double>(received_bytes - received_before_);
    const double each = bytes / observed_s / size_;
    const bool is_slow = each < kFastBytesPerSecond && each > kSlowestBytesPerSecond;
    if (is_slow && asleep_s_ > observed_s * kMostly) size_ = std::min(size_ * 2, max_size_);
    restart(after, received_bytes);
  }

  // No more than `count` at a time from now on; there is no room for more on this machine.
  void limit(unsigned count) {
    max_size_ = std::max(1U, std::min(max_size_, count));
    size_ = std::min(size_, max_size_);
  }

  // Forget what was observed: not all of the window is in use, so more room would not be either.
  void restart(TimePoint now, std::uint64_t received_bytes) {
    asleep_s_ = 0;
    observed_since_ = now;
    received_before_ = received_bytes;
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

  unsigned max_size_;
  unsigned size_;
  double asleep_s_ = 0;
  std::uint64_t received_before_ = 0;
  TimePoint observed_since_ = Clock::now();
};

}  // namespace streamer
