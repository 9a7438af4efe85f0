// The readers of one lane: which of them wait for a block, and which are woken.
//
// Rule: an event for readers is noted under the owner's lock, and the readers are notified after
// the lock is released. A notification is a system call, and a woken reader needs the lock itself.
// Only one waiting thread is notified at a time, unless all must look. Until that thread runs,
// other readers take blocks without a system call for each.
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
  // The threads that notify() wakes. All values except kNone include the reactors.
  enum class Woken { kNone, kReactors, kOne, kAll };

  // --- under the owner's lock ---
  // Notes that a reader found nothing because memory, or else a slot, is short. Holds until there
  // may be work.
  void note_starved(bool is_of_slots = false) {
    is_starved_ = true;
    are_slots_short_ = is_of_slots;
  }
  bool are_starved() const { return is_starved_; }
  bool are_slots_short() const { return is_starved_ && are_slots_short_; }
  // Notes that there may be a block.
  void note_work();
  // Notes that all readers must look: nothing more will come, or there is work for all of them.
  void note_work_for_all();
  // Waits until notified, or until the given time.
  void wait(std::unique_lock<std::mutex>& lock, std::optional<TimePoint> until);
  // Called by a reader that found a block and may have left more. Returns whether it must call
  // wake_next().
  bool note_next();
  // Returns whom to notify for the events since the last call.
  Woken take_woken();

  // --- without it ---
  void wake_next() { has_work_.notify_one(); }
  void notify(Woken woken);
  // The waker is called by notify(), from any thread, until remove_wakers().
  void add_waker(std::function<void()> waker);
  void remove_wakers();

 private:
  bool is_starved_ = false;
  bool are_slots_short_ = false;
  std::uint32_t waiting_ = 0;  // threads in wait()
  bool is_work_noted_ = false;
  bool is_for_all_ = false;
  bool is_waking_ = false;  // a thread was notified, and has not looked for a block yet
  std::condition_variable has_work_;
  std::mutex wakers_mutex_;  // never taken while the owner's lock is held
  std::vector<std::function<void()>> wakers_;
};

}  // namespace streamer
