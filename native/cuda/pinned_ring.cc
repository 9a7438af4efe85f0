#include "cuda/pinned_ring.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace streamer {
namespace {

// The number of bytes that are pinned in one call. Pinning them takes some 5 ms; copying them over
// a bus takes a hundredth of a second.
constexpr std::size_t kPreparedBytes = std::size_t{64} << 20;
// Each thread fills in some 6 GB/s of fresh pages. More than four threads wait for the kernel's
// lock.
constexpr unsigned kMostTouchingThreads = 4;
constexpr const char* kOutOfMemoryName = "CUDA_ERROR_OUT_OF_MEMORY";

unsigned touching_threads() {
  return std::clamp(std::thread::hardware_concurrency() / 4, 1U, kMostTouchingThreads);
}

// Returns whether a free slot is large enough for the user's blocks, and within its limit. A slot
// of an earlier load may be larger than the whole limit of this one.
bool fits(const RingUser& user, const PinnedMemory& slot) {
  return slot.size() >= user.slot_bytes && user.held_bytes + slot.size() <= user.limit_bytes;
}

}  // namespace

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
  const std::lock_guard lock(ring_->mutex_);  // other slots may abandon parts of the same memory
  memory_.abandon();
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
  bool has_slot = is_allowed && take_free(*slot);
  if (is_allowed && !has_slot) {
    if (user->is_prepared_for) {
      user->is_short = true;
      has_need_.notify_all();
    } else if (make_room(*user, user->slot_bytes, slot->evicted_)) {
      slot->capacity_ = user->slot_bytes;
      has_slot = true;
    }
  }
  if (!has_slot) {
    user->is_waiting = true;
    slot->ring_.reset();
    return nullptr;
  }
  user->held_bytes += slot->capacity_;
  user->peak_bytes = std::max(user->peak_bytes, user->held_bytes);
  return slot;
}

// Takes the smallest free slot that is large enough and within the user's limit. Among equal slots,
// it takes the one that came back last, because its bytes are most likely in the processor's cache.
// Filling the same few slots again is a seventh faster than cycling through 256 MiB (decision
// 0007).
bool PinnedRing::take_free(PinnedSlot& slot) {
  const RingUser& user = *slot.user_;
  auto best = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (fits(user, *it) && (best == free_.end() || it->size() <= best->size())) best = it;
  }
  if (best == free_.end()) return false;
  slot.capacity_ = best->size();
  slot.memory_ = std::move(*best);
  free_.erase(best);
  stats_.free_bytes -= slot.capacity_;
  return true;
}

// Reserves room for `bytes` more. If necessary, evicts free slots; none of them fits this user.
bool PinnedRing::make_room(const RingUser& user, std::size_t bytes,
                           std::vector<PinnedMemory>& evicted) {
  const std::uint64_t limit = user.limit_bytes;
  if (stats_.pinned_bytes - stats_.free_bytes + bytes > limit) return false;
  while (stats_.pinned_bytes + bytes > limit) {
    stats_.pinned_bytes -= free_.back().size();
    stats_.free_bytes -= free_.back().size();
    evicted.push_back(std::move(free_.back()));
    free_.pop_back();
  }
  stats_.pinned_bytes += bytes;
  return true;
}

void PinnedRing::begin_preparing(const std::shared_ptr<RingUser>& user) {
  const std::lock_guard lock(mutex_);
  user->is_prepared_for = true;
}

void PinnedRing::prepare(const std::shared_ptr<RingUser>& user) {
  std::unique_lock lock(mutex_);
  while (!user->is_ending) {
    std::vector<PinnedMemory> evicted;
    const std::size_t slots = room_to_prepare(*user, evicted);
    if (slots == 0) {
      has_need_.wait(lock);
      continue;
    }
    lock.unlock();
    evicted.clear();
    pin_slots(*user, slots);
    lock.lock();
  }
}

void PinnedRing::end_preparing(const std::shared_ptr<RingUser>& user) {
  const std::lock_guard lock(mutex_);
  user->is_ending = true;
  user->is_prepared_for = false;
  has_need_.notify_all();
}

// Returns how many slots to pin next, and reserves their room: as many as are useful in one call,
// or one. Returns 0 if the user needs none now.
std::size_t PinnedRing::room_to_prepare(RingUser& user, std::vector<PinnedMemory>& evicted) {
  const std::uint64_t first = std::min(user.first_bytes, user.limit_bytes);
  const bool is_first = stats_.pinned_bytes + user.slot_bytes <= first;
  const bool is_short = std::exchange(user.is_short, false) && !has_free(user);
  if (!is_first && !is_short) return 0;
  const std::uint64_t limit = is_first ? first : user.limit_bytes;
  const std::uint64_t left = limit - std::min(limit, stats_.pinned_bytes);
  const std::size_t many = std::min<std::uint64_t>(kPreparedBytes, left) / user.slot_bytes;
  if (many > 0 && make_room(user, many * user.slot_bytes, evicted)) return many;
  return make_room(user, user.slot_bytes, evicted) ? 1 : 0;
}

// Pins slots whose room is reserved. If the system does not lock enough memory for all, pins one
// slot.
void PinnedRing::pin_slots(RingUser& user, std::size_t count) {
  std::vector<PinnedMemory> slots;
  try {
    const std::size_t bytes = count * PinnedMemory::stride_of(user.slot_bytes);
    slots = PinnedMemory::cut(PinnedMemory(device_, bytes, touching_threads()), user.slot_bytes);
  } catch (const DeviceFailure& failure) {
    const std::size_t less = count > 1 ? 1 : 0;
    give_room_back((count - less) * user.slot_bytes);
    if (less > 0) return pin_slots(user, less);
    if (!can_do_without(user, failure)) throw;
    return;
  }
  const std::lock_guard lock(mutex_);
  for (PinnedMemory& slot : slots) {
    stats_.free_bytes += slot.size();
    free_.push_back(std::move(slot));
  }
  user.is_short = false;  // a user that lacks a slot after these ones requests one again
  wake_waiting();
}

bool PinnedRing::has_free(const RingUser& user) const {
  return std::any_of(free_.begin(), free_.end(),
                     [&](const PinnedMemory& slot) { return fits(user, slot); });
}

void PinnedRing::give_room_back(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  stats_.pinned_bytes -= bytes;
}

// Returns whether the user can continue with the existing slots. If so, lowers the user's limit, so
// that no further slot is pinned for it.
bool PinnedRing::can_do_without(RingUser& user, const DeviceFailure& failure) {
  if (failure.error().storage_code != kOutOfMemoryName) return false;
  const std::lock_guard lock(mutex_);
  if (user.held_bytes == 0 && !has_free(user)) return false;
  user.limit_bytes = std::max<std::uint64_t>(stats_.pinned_bytes, user.slot_bytes);
  return true;
}

void PinnedRing::give_back(PinnedSlot& slot) {
  const std::lock_guard lock(mutex_);
  slot.user_->held_bytes -= slot.capacity_;
  if (slot.memory_.data() != nullptr) {
    stats_.free_bytes += slot.capacity_;
    free_.push_back(std::move(slot.memory_));
  } else {
    stats_.pinned_bytes -= slot.capacity_;  // the slot was abandoned, or could not be pinned
  }
  wake_waiting();
}

void PinnedRing::wake_waiting() {
  for (const auto& user : users_) {
    if (std::exchange(user->is_waiting, false)) user->wake();
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
