// Whether a transfer has stalled: it brings less than a server must, for as long as one may.
//
// Where all transfers of a reactor together bring what one must, the line is slow, not the server:
// then only those that fall far behind the others have stalled. Pure.
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

  // From here on; with what this transfer, and all of its reactor, received so far.
  void start(TimePoint now, std::uint64_t received, std::uint64_t received_by_all) {
    start_ = now;
    received_ = received;
    received_by_all_ = received_by_all;
  }

  // To be asked often, with as many transfers as are under way now.
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
  // Of what each transfer would get if they shared alike: below, it is this one that is slow.
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
