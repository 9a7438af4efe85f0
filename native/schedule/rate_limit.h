// How many bytes a second a load may request, so that other users of the network or disk get the
// rest.
//
// A block is handed out as a whole. The next block waits until the limit allows the bytes of all
// earlier blocks, so the average is right for any block size. Unused time is lost, except for a
// twentieth of a second. (This is the virtual scheduling of ITU-T I.371's generic cell rate
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
  // 0 means no limit.
  explicit RateLimit(std::uint64_t bytes_per_second)
      : bytes_per_second_(static_cast<double>(bytes_per_second)) {}

  // Returns nothing if a block may be handed out now, else the time to ask again.
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
