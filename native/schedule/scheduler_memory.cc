// The part of the scheduler that knows of host memory: who holds it, how much, and until when.
#include <algorithm>
#include <new>
#include <utility>

#include "schedule/scheduler.h"

namespace streamer {

bool Scheduler::reserve(std::uint32_t index) {
  Item& item = plan_.items[index];
  if (item.target != nullptr || item.size() == 0) return true;  // costs no memory of ours
  if (item.device != kHost) return false;                       // asked for, and not there yet
  const bool fits = held_bytes_ + item.size() <= options_.memory_limit_bytes;
  if (!fits && held_bytes_ > 0 && index != front_) return false;
  try {
    memory_[index] = arena_.allocate(item.size(), item.begin);
  } catch (const std::bad_alloc&) {
    if (!may_get_memory_back(index)) throw;
    is_memory_short_ = true;
    return false;
  }
  item.target = memory_[index].data();
  held_bytes_ += item.size();
  stats_.peak_held_bytes = std::max(stats_.peak_held_bytes, held_bytes_);
  return true;
}

// What the consumer took may come back until it asks for more; what is held, if the consumer can
// get that without the item.
bool Scheduler::may_get_memory_back(std::uint32_t index) const {
  const bool is_awaited = options_.in_item_order && index == front_;
  return !is_consumer_back_ || (held_bytes_ > 0 && !is_awaited);
}

Memory Scheduler::take_item(std::uint32_t item) {
  const std::lock_guard lock(mutex_);
  if (item >= memory_.size() || state_[item] != ItemState::kDelivered) return {};
  Memory memory = std::move(memory_[item]);
  if (is_released_) return {};
  memory.hand_over();
  is_consumer_back_ = false;
  held_bytes_ -= memory.size();
  if (!is_asked_.empty() && is_asked_[item]) held_bytes_ -= plan_.items[item].size();
  state_[item] = ItemState::kTaken;
  while (front_ < state_.size() && state_[front_] == ItemState::kTaken) ++front_;
  ask_for_memory();
  wake_starved_locked();
  return memory;
}

void Scheduler::release() {
  const std::lock_guard lock(mutex_);
  is_release_asked_ = true;
  release_locked();
}

void Scheduler::end_loan() {
  const std::lock_guard lock(mutex_);
  --loans_;
  if (is_release_asked_) release_locked();
}

void Scheduler::release_locked() {
  if (is_released_ || loans_ > 0) return;
  is_released_ = true;
  for (Memory& memory : memory_) memory = Memory();
  held_bytes_ = 0;
  arena_.leave(options_.memory_limit_bytes);
}

}  // namespace streamer
