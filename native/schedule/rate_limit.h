// How many bytes a second a load may ask for, so that its neighbours on a network or disk have the
// rest.
//
// Blocks are handed out at their whole size, and the next one when the time for those before it is
// over: the average holds, whatever sizes there are. Time in which nothing was asked for is lost,
// but for a twentieth of a second. (The virtual scheduling of ITU-T I.371's generic cell rate
// algorithm.)
//
// Not thread-safe; the scheduler calls it under its lock.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "base/clock.h"

namespace streamer {

class RateLimit {
 public:
  // 0: none.
  explicit RateLimit(std::uint64_t bytes_per_second)
      : bytes_per_second_(static_cast<double>(bytes_per_second)) {}

  // Nothing where a block may be handed out now; else when to ask again.
  std::optional<TimePoint> closed_until(TimePoint now) const {
    if (next_ <= now) return std::nullopt;
    return next_;
  }

  void record(std::uint64_t bytes, TimePoint now) {
    if (bytes_per_second_ == 0) return;
    next_ = after(std::max(next_, after(now, -kSavedS)),
                  static_cast<double>(bytes) / bytes_per_second_);
  }

 private:
  static constexpr double kSavedS = 0.05;

  double bytes_per_second_;
  TimePoint next_{};
};

}  // namespace streamer
