// The engine's only clock for deadlines. It is monotonic, so a change of the wall clock does not
// affect them.
#pragma once

#include <chrono>

namespace streamer {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;
using Seconds = std::chrono::duration<double>;

inline double seconds_between(TimePoint from, TimePoint to) { return Seconds(to - from).count(); }

// Seconds since 1970 by the wall clock, for expiry times of credentials and for dates that servers
// send.
inline double unix_time_s() {
  return Seconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

inline TimePoint after(TimePoint start, double seconds) {
  return start + std::chrono::duration_cast<Clock::duration>(Seconds(seconds));
}

}  // namespace streamer
