// The requests that a server lets wait. It may serve few connections at a time, each until that is
// closed: whoever has one without a request closes it, where others wait.
//
// Thread-safe.
#pragma once

#include <mutex>
#include <set>

#include "base/clock.h"
#include "net/latest_time.h"

namespace streamer {

class WaitingRequests {
 public:
  // Longer than a server takes to start a process for a connection, and than most requests take as
  // a whole.
  static constexpr double kPatienceS = 2;

  // A request that is not the engine's, as long as this lives.
  class Foreign {
   public:
    explicit Foreign(WaitingRequests& all) : all_(all) {
      const std::lock_guard lock(all_.mutex_);
      started_ = all_.foreign_.insert(Clock::now());
    }
    ~Foreign() {
      const std::lock_guard lock(all_.mutex_);
      all_.foreign_.erase(started_);
    }
    Foreign(const Foreign&) = delete;
    Foreign& operator=(const Foreign&) = delete;

   private:
    WaitingRequests& all_;
    std::multiset<TimePoint>::iterator started_;
  };

  // One of the engine's has waited that long on a new connection. Noted anew as long as it does.
  void note(TimePoint now) { noted_.note(now); }

  bool are_some(TimePoint now) {
    if (after(noted_.value(), kNotedForS) > now) return true;
    const std::lock_guard lock(mutex_);
    return !foreign_.empty() && after(*foreign_.begin(), kPatienceS) <= now;
  }

 private:
  static constexpr double kNotedForS = 1.5;  // reactors and kept connections look once in a second

  LatestTime noted_;
  std::mutex mutex_;
  std::multiset<TimePoint> foreign_;  // when they were started; guarded by mutex_
};

}  // namespace streamer
