#include "cuda/pinned_ring.h"

#include <algorithm>
#include <utility>

namespace streamer {

PinnedSlot::~PinnedSlot() {
  if (ring_) ring_->give_back(*this);
}

bool PinnedSlot::pin() {
  evicted_.clear();
  if (memory_.data() != nullptr) return false;
  memory_ = PinnedMemory(ring_->device(), capacity_);
  return true;
}

void PinnedSlot::abandon() {
  memory_.abandon();
  const std::lock_guard lock(ring_->mutex_);
  ring_->stats_.abandoned_bytes += capacity_;
}

void PinnedRing::join(const std::shared_ptr<RingUser>& user) {
  const std::lock_guard lock(mutex_);
  users_.push_back(user);
}

void PinnedRing::leave(const std::shared_ptr<RingUser>& user) {
  const std::lock_guard lock(mutex_);
  std::erase(users_, user);
}

std::shared_ptr<PinnedSlot> PinnedRing::try_acquire(const std::shared_ptr<RingUser>& user) {
  std::shared_ptr<PinnedSlot> slot(new PinnedSlot(shared_from_this(), user, 0));
  const std::lock_guard lock(mutex_);
  const bool is_allowed = user->held_bytes + user->slot_bytes <= user->limit_bytes;
  if (!is_allowed || !(take_free(*slot) || make_room(*slot))) {
    user->is_waiting = true;
    slot->ring_.reset();
    return nullptr;
  }
  user->held_bytes += slot->capacity_;
  user->peak_bytes = std::max(user->peak_bytes, user->held_bytes);
  return slot;
}

// The smallest free slot that is large enough, and within what the user may hold; of equal ones
// that which was given back last, as it is likeliest to lie in the processor's cache: filling a few
// slots again and again is a seventh faster than going round 256 MiB (decision 0007).
bool PinnedRing::take_free(PinnedSlot& slot) {
  const RingUser& user = *slot.user_;
  auto best = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const bool fits =
        it->size() >= user.slot_bytes && user.held_bytes + it->size() <= user.limit_bytes;
    if (fits && (best == free_.end() || it->size() <= best->size())) best = it;
  }
  if (best == free_.end()) return false;
  slot.capacity_ = best->size();
  slot.memory_ = std::move(*best);
  free_.erase(best);
  stats_.free_bytes -= slot.capacity_;
  return true;
}

// Room for one slot more, if need be in place of free ones that are too small.
bool PinnedRing::make_room(PinnedSlot& slot) {
  const std::size_t bytes = slot.user_->slot_bytes;
  const std::uint64_t limit = slot.user_->limit_bytes;
  if (stats_.pinned_bytes - stats_.free_bytes + bytes > limit) return false;
  while (stats_.pinned_bytes + bytes > limit) {
    stats_.pinned_bytes -= free_.back().size();
    stats_.free_bytes -= free_.back().size();
    slot.evicted_.push_back(std::move(free_.back()));
    free_.pop_back();
  }
  slot.capacity_ = bytes;
  stats_.pinned_bytes += bytes;
  return true;
}

void PinnedRing::give_back(PinnedSlot& slot) {
  const std::lock_guard lock(mutex_);
  slot.user_->held_bytes -= slot.capacity_;
  if (slot.memory_.data() != nullptr) {
    stats_.free_bytes += slot.capacity_;
    free_.push_back(std::move(slot.memory_));
  } else {
    stats_.pinned_bytes -= slot.capacity_;  // abandoned, or it could not be pinned
  }
  for (const auto& user : users_) {
    if (!std::exchange(user->is_waiting, false)) continue;
    user->wake();
  }
}

std::uint64_t PinnedRing::release_free() {
  std::vector<PinnedMemory> freed;
  {
    const std::lock_guard lock(mutex_);
    freed.swap(free_);
    stats_.pinned_bytes -= stats_.free_bytes;
    stats_.free_bytes = 0;
  }
  std::uint64_t bytes = 0;
  for (const PinnedMemory& memory : freed) bytes += memory.size();
  return bytes;
}

std::uint64_t PinnedRing::peak_bytes(const RingUser& user) {
  const std::lock_guard lock(mutex_);
  return user.peak_bytes;
}

RingStats PinnedRing::stats() {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace streamer
