// Whether the cache of another machine gives its bytes quickly enough to be worth the wait: its
// storage has them, too.
//
// All requests for one object count together. A server makes progress if it completes a response,
// or sends kStepBytes. So it may neither be silent nor send drop by drop for longer than
// kPatienceS.
//
// Thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>

#include "base/clock.h"

namespace streamer {

class ProgressWatch {
 public:
  static constexpr double kPatienceS = 0.8;
  static constexpr std::uint64_t kStepBytes = 256 << 10;

  void note_bytes(std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    bytes_ += bytes;
    if (bytes_ >= kStepBytes) advance();
  }
  void note_response() {
    const std::lock_guard lock(mutex_);
    advance();
  }
  // Whether a request that was sent at `started` has waited too long.
  bool is_late(TimePoint started, TimePoint now) const {
    const std::lock_guard lock(mutex_);
    return seconds_between(std::max(started, last_), now) > kPatienceS;
  }

 private:
  void advance() {
    bytes_ = 0;
    last_ = Clock::now();
  }

  mutable std::mutex mutex_;
  std::uint64_t bytes_ = 0;  // since last_
  TimePoint last_{};
};

}  // namespace streamer
