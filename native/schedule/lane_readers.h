// The readers of one lane: who waits for a block, and who of them is woken.
//
// Invariant: what may concern a reader is noted under the owner's lock, and the reader is notified
// after it, as that is a system call, and who wakes up needs the lock. One waiting thread at a time
// is notified, unless all are to look: until it runs, the others that run already take blocks
// without a system call for each.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "base/clock.h"

namespace streamer {

class LaneReaders {
 public:
  // Whom notify() wakes; reactors with all but kNone.
  enum class Woken { kNone, kReactors, kOne, kAll };

  // --- under the owner's lock ---
  // A reader found nothing as memory or a slot is short; true until there may be work.
  void note_starved() { is_starved_ = true; }
  bool are_starved() const { return is_starved_; }
  // There may be a block.
  void note_work();
  // Nothing more will come, or so much that all are to look.
  void note_work_for_all();
  // Waits until notified, or until then.
  void wait(std::unique_lock<std::mutex>& lock, std::optional<TimePoint> until);
  // By a reader that found a block, and may have left more: whether it is to call wake_next().
  bool note_next();
  // Whom to notify for what was noted since.
  Woken take_woken();

  // --- without it ---
  void wake_next() { has_work_.notify_one(); }
  void notify(Woken woken);
  // Called by notify(), from any thread; not after remove_wakers().
  void add_waker(std::function<void()> waker);
  void remove_wakers();

 private:
  bool is_starved_ = false;
  std::uint32_t waiting_ = 0;  // threads in wait()
  bool is_work_noted_ = false;
  bool is_for_all_ = false;
  bool is_waking_ = false;  // a thread was notified, and has not looked for a block since
  std::condition_variable has_work_;
  std::mutex wakers_mutex_;  // never taken inside of the owner's lock
  std::vector<std::function<void()>> wakers_;
};

}  // namespace streamer
