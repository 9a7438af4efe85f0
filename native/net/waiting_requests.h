// Requests that wait because a server serves few connections at a time, each until it is closed.
// While some requests wait, every owner of an idle connection closes its connection.
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
  // A wait of this length means that the server does not serve the connection. It is longer than a
  // server takes to start a process for a connection, and longer than most requests take.
  static constexpr double kLongWaitS = 2;

  // A request that the storage's client sends, not the engine. It lasts from construction to
  // destruction.
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
    const Clock::Watched watched_;
    std::multiset<TimePoint>::iterator started_;
  };

  // Records that a request of the engine has waited for kLongWaitS on a new connection. The request
  // repeats this call while it waits.
  void note(TimePoint now) { noted_.note(now); }

  bool are_some(TimePoint now) {
    if (after(noted_.value(), kNotedForS) > now) return true;
    const std::lock_guard lock(mutex_);
    return !foreign_.empty() && after(*foreign_.begin(), kLongWaitS) <= now;
  }

 private:
  // Longer than one second, the interval at which reactors and kept connections check.
  static constexpr double kNotedForS = 1.5;

  LatestTime noted_;
  std::mutex mutex_;
  std::multiset<TimePoint> foreign_;  // start times; guarded by mutex_
};

}  // namespace streamer
