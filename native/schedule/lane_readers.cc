#include "schedule/lane_readers.h"

#include <utility>

namespace streamer {

void LaneReaders::note_work() {
  is_starved_ = false;
  is_work_noted_ = true;
}

void LaneReaders::note_work_for_all() {
  note_work();
  is_for_all_ = true;
}

void LaneReaders::wait(std::unique_lock<std::mutex>& lock, std::optional<TimePoint> until) {
  ++waiting_;
  if (until) {
    has_work_.wait_until(lock, *until);
  } else {
    has_work_.wait(lock);
  }
  --waiting_;
  is_waking_ = false;
}

bool LaneReaders::note_next() {
  if (waiting_ == 0 || is_waking_) return false;
  is_waking_ = true;
  return true;
}

LaneReaders::Woken LaneReaders::take_woken() {
  if (!std::exchange(is_work_noted_, false)) return Woken::kNone;
  if (std::exchange(is_for_all_, false)) return Woken::kAll;
  return note_next() ? Woken::kOne : Woken::kReactors;
}

void LaneReaders::notify(Woken woken) {
  if (woken == Woken::kNone) return;
  if (woken == Woken::kOne) has_work_.notify_one();
  if (woken == Woken::kAll) has_work_.notify_all();
  const std::lock_guard lock(wakers_mutex_);
  for (const auto& waker : wakers_) waker();
}

void LaneReaders::add_waker(std::function<void()> waker) {
  const std::lock_guard lock(wakers_mutex_);
  wakers_.push_back(std::move(waker));
}

void LaneReaders::remove_wakers() {
  const std::lock_guard lock(wakers_mutex_);
  wakers_.clear();
}

}  // namespace streamer
