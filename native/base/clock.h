// The engine's only clock for deadlines. It is monotonic, so a change of the wall clock does not
// affect them. It also stands still while the process is suspended (a paused container, a frozen
// cgroup, a sleeping machine): the server and the network are not to blame for that time.
#pragma once

#include <atomic>
#include <chrono>

namespace streamer {

class Clock {
 public:
  using duration = std::chrono::steady_clock::duration;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<Clock>;
  static constexpr bool is_steady = true;

  static time_point now() noexcept {
    for (;;) {
      rep left_out = left_out_.load();
      const rep reading = std::chrono::steady_clock::now().time_since_epoch().count() - left_out;
      rep last = last_.load();
      if (watchers_.load() > 0 && reading - last > kSuspended.count()) {
        left_out_.compare_exchange_strong(left_out, left_out + reading - last - kCounted.count());
        continue;
      }
      while (last < reading && !last_.compare_exchange_weak(last, reading)) {
      }
      return time_point(duration(reading));
    }
  }

  // While one exists, threads look at the clock all the time: a long time without a look means that
  // the process did not run.
  class Watched {
   public:
    Watched() {
      now();
      ++watchers_;
    }
    ~Watched() { --watchers_; }
    Watched(const Watched&) = delete;
    Watched& operator=(const Watched&) = delete;
  };

 private:
  // The threads of a load look at least once a second.
  static constexpr duration kSuspended = std::chrono::seconds(2);
  static constexpr duration kCounted = std::chrono::seconds(1);  // of a longer time without a look

  static inline std::atomic<rep> left_out_{0};
  static inline std::atomic<rep> last_{0};
  static inline std::atomic<int> watchers_{0};
};

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
