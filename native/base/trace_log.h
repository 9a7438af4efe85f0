// What the threads of a load did, and when: a bounded list, which the consumer empties.
//
// Thread-safe. There is one event for each block, so the threads seldom meet at the lock. Times are
// those of CLOCK_MONOTONIC, which all processes of a machine share.
#pragma once

#include <pthread.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace streamer {

struct TraceEvent {
  const char* category = "";  // as docs/traces.md lists them
  std::uint32_t source = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  int attempt = 0;
  int http_status = 0;
  bool reuses_connection = false;
  std::array<std::int64_t, 5> phases_us{};  // dns, connect, tls, first_byte, transfer
  std::string failure;                      // without secrets
  bool may_overlap = false;                 // with other events of the same thread

  // The following are set by TraceLog.
  std::int64_t began_us = 0;
  std::int64_t ended_us = 0;
  std::array<char, 16> thread_name{};
};

class TraceLog {
 public:
  explicit TraceLog(std::size_t most) : most_(most) {}

  // Adds an event that ends now, on the calling thread.
  void add(TraceEvent event, TimePoint began) noexcept {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    event.ended_us = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
    const double seconds = seconds_between(began, Clock::now());
    event.began_us = event.ended_us - static_cast<std::int64_t>(seconds * 1e6);
    pthread_getname_np(pthread_self(), event.thread_name.data(), event.thread_name.size());
    const std::lock_guard lock(mutex_);
    try {
      if (events_.size() < most_) return events_.push_back(std::move(event));
    } catch (const std::bad_alloc&) {  // a load never fails because of its trace
    }
    ++dropped_;
  }

  // Removes and returns the events so far, and the number of those that were dropped.
  std::pair<std::vector<TraceEvent>, std::uint64_t> take() {
    const std::lock_guard lock(mutex_);
    return {std::exchange(events_, {}), std::exchange(dropped_, 0)};
  }

 private:
  const std::size_t most_;
  std::mutex mutex_;
  std::vector<TraceEvent> events_;
  std::uint64_t dropped_ = 0;
};

}  // namespace streamer
