// Detects a stalled transfer, which is slower than stall_bytes_per_s for stall_timeout_s.
//
// If all transfers of a reactor together reach the speed that one transfer needs, the line may be
// slow, not the server. In this case only transfers that are far behind the others count as
// stalled. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "net/timeouts.h"

namespace streamer {

class StallWatch {
 public:
  explicit StallWatch(const Timeouts& timeouts) : timeouts_(timeouts) {}

  // Starts a measurement. `received`: bytes of this transfer so far; `received_by_all`: bytes of
  // all transfers of the reactor.
  void start(TimePoint now, std::uint64_t received, std::uint64_t received_by_all) {
    start_ = now;
    received_ = received;
    received_by_all_ = received_by_all;
  }

  // Checks for a stall; call this often. `active`: the number of transfers under way now.
  bool has_stalled(TimePoint now, std::uint64_t received, std::uint64_t received_by_all,
                   std::size_t active) {
    const double seconds = seconds_between(start_, now);
    if (seconds <= timeouts_.stall_timeout_s) return false;
    const double own = static_cast<double>(received - received_) / seconds;
    const double of_all = static_cast<double>(received_by_all - received_by_all_) / seconds;
    start(now, received, received_by_all);
    return own < slowest_bytes_per_s(of_all, active);
  }

 private:
  // Share of the average speed of all transfers. A transfer below this share is itself slow.
  static constexpr double kFairShare = 0.25;

  double slowest_bytes_per_s(double of_all, std::size_t active) const {
    if (of_all < timeouts_.stall_bytes_per_s) return timeouts_.stall_bytes_per_s;
    const double share = of_all / static_cast<double>(std::max<std::size_t>(active, 1));
    return std::min(timeouts_.stall_bytes_per_s, share * kFairShare);
  }

  Timeouts timeouts_;
  TimePoint start_{};
  std::uint64_t received_ = 0;         // at start_
  std::uint64_t received_by_all_ = 0;  // at start_
};

}  // namespace streamer
