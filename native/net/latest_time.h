// The latest of the times that several threads record.
#pragma once

#include <atomic>

#include "base/clock.h"

namespace streamer {

class LatestTime {
 public:
  void note(TimePoint time) {
    TimePoint before = value_;
    while (before < time && !value_.compare_exchange_weak(before, time)) {
    }
  }

  TimePoint value() const { return value_; }

 private:
  std::atomic<TimePoint> value_{};
};

}  // namespace streamer
