// The part of the scheduler that wakes readers and the consumer: after its lock, as that is a
// system call for each of them, and who wakes up needs the lock.
#include <utility>

#include "schedule/scheduler.h"

namespace streamer {

void Scheduler::wake_lane(LaneQueue& lane) {
  lane.is_starved = false;
  lane.is_to_be_woken = true;
}

// Whether one of the lane's readers is to be notified. One at a time: until it runs, the others
// that run already take blocks without a system call for each.
bool Scheduler::notes_waking(LaneQueue& lane) {
  if (lane.waiting == 0 || lane.is_waking) return false;
  lane.is_waking = true;
  return true;
}

void Scheduler::wake_all_of(LaneQueue& lane) {
  wake_lane(lane);
  lane.are_all_to_be_woken = true;
}

void Scheduler::unlock_and_wake(std::unique_lock<std::mutex>& lock) {
  enum class Woken { kNone, kReactors, kOne, kAll };
  std::array<Woken, kLaneCount> woken{};
  for (std::size_t i = 0; i < kLaneCount; ++i) {
    LaneQueue& lane = lanes_[i];
    if (!std::exchange(lane.is_to_be_woken, false)) continue;
    const bool is_all = std::exchange(lane.are_all_to_be_woken, false);
    woken[i] = is_all ? Woken::kAll : notes_waking(lane) ? Woken::kOne : Woken::kReactors;
  }
  const bool is_consumer_woken = std::exchange(is_consumer_to_be_woken_, false);
  lock.unlock();
  if (is_consumer_woken) has_delivery_.notify_all();
  for (std::size_t i = 0; i < kLaneCount; ++i) {
    if (woken[i] == Woken::kNone) continue;
    if (woken[i] == Woken::kOne) lanes_[i].has_work.notify_one();
    if (woken[i] == Woken::kAll) lanes_[i].has_work.notify_all();
    const std::lock_guard wakers_lock(wakers_mutex_);
    for (const auto& waker : lanes_[i].wakers) waker();
  }
}

void Scheduler::wake_starved_locked() {
  for (LaneQueue& lane : lanes_) {
    if (lane.is_starved) wake_lane(lane);
  }
}

void Scheduler::wake_starved() {
  const Locked lock(*this);
  wake_starved_locked();
}

void Scheduler::add_waker(Lane which, std::function<void()> waker) {
  const std::lock_guard lock(wakers_mutex_);
  queue_of(which).wakers.push_back(std::move(waker));
}

void Scheduler::remove_wakers() {
  const std::lock_guard lock(wakers_mutex_);
  for (LaneQueue& lane : lanes_) lane.wakers.clear();
}

}  // namespace streamer
