// Divides the time of a load among what bounded it.
//
// Guarded by the scheduler's lock.
#pragma once

#include <array>
#include <bitset>
#include <cstddef>

#include "base/clock.h"
#include "plan/lane.h"

namespace streamer {

// The readers of a lane, by its number; or one of the following.
enum Bound : std::size_t {
  kMemoryBound = kLaneCount,  // readers lack memory, although the consumer waits for items
  kSlotsBound,                // readers lack pinned memory, whose bytes are copied to a device
  kConsumerBound,             // readers lack memory, or are done, while the consumer is busy
  kBounds
};

class BoundTimes {
 public:
  using Seconds = std::array<double, kBounds>;

  // Divides the time since the last call equally among `bounds`. The first call only begins.
  void spend(TimePoint now, const std::bitset<kBounds>& bounds) {
    const double passed_s = last_ == TimePoint{} ? 0 : seconds_between(last_, now);
    if (passed_s < 0) return;
    last_ = now;
    for (std::size_t i = 0; i < kBounds; ++i) {
      if (bounds[i]) seconds_[i] += passed_s / static_cast<double>(bounds.count());
    }
  }

  const Seconds& seconds() const { return seconds_; }

  bool is_consumer_busy = false;  // with items that wait() returned

 private:
  TimePoint last_{};
  Seconds seconds_{};
};

}  // namespace streamer
