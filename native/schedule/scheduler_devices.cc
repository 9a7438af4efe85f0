// The part of the scheduler that knows of devices: slots of pinned memory, and memory on the
// device.
#include <algorithm>
#include <stdexcept>
#include <utility>

#include "schedule/scheduler.h"

namespace streamer {
namespace {

// Allocations the consumer makes between two looks at what is finished: about a millisecond.
constexpr std::ptrdiff_t kMostAskedAtOnce = 256;

}  // namespace

void Scheduler::add_device(std::int32_t device, DeviceLane lane) {
  const std::lock_guard lock(mutex_);
  devices_[device] = std::move(lane);
}

void Scheduler::provide(const std::vector<std::uint32_t>& items,
                        const std::vector<std::byte*>& targets) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < items.size(); ++i) {
    const bool is_asked = items[i] < is_asked_.size() && is_asked_[items[i]];
    if (!is_asked || targets.at(i) == nullptr) {
      throw std::invalid_argument("memory is provided for what was asked");
    }
    plan_.items[items[i]].target = targets[i];
  }
  wake_starved_locked();
}

// Makes known which items need memory on their device, as far as the limit allows.
void Scheduler::ask_for_memory() {
  if (is_asked_.empty()) return;
  for (; next_to_ask_ < plan_.items.size(); ++next_to_ask_) {
    const Item& item = plan_.items[next_to_ask_];
    if (item.device == kHost || item.target != nullptr || item.size() == 0) continue;
    const bool fits = held_bytes_ + item.size() <= options_.memory_limit_bytes;
    if (!fits && held_bytes_ > 0 && next_to_ask_ != front_) return;
    is_asked_[next_to_ask_] = true;
    held_bytes_ += item.size();
    stats_.peak_held_bytes = std::max(stats_.peak_held_bytes, held_bytes_);
    to_allocate_.push_back(next_to_ask_);
    has_delivery_.notify_all();
  }
}

std::vector<std::uint32_t> Scheduler::next_to_allocate() {
  const std::lock_guard lock(mutex_);
  return is_stopped_ ? std::vector<std::uint32_t>() : take_asked();
}

std::vector<std::uint32_t> Scheduler::take_asked() {
  const auto count = std::min(std::ssize(to_allocate_), kMostAskedAtOnce);
  std::vector<std::uint32_t> next(to_allocate_.begin(), to_allocate_.begin() + count);
  to_allocate_.erase(to_allocate_.begin(), to_allocate_.begin() + count);
  return next;
}

void Scheduler::set_straight(std::uint32_t source, bool is_straight) {
  const std::lock_guard lock(mutex_);
  if (is_straight && ledger_.is_empty()) straight_.insert(source);
  if (!is_straight) straight_.erase(source);
}

bool Scheduler::try_give_slot(Block& block) {
  if (block.device == kHost || straight_.contains(block.source)) return true;
  return devices_.at(block.device).try_give_slot(block);
}

// A block that is to pass through pinned memory, directed there. Without the lock.
TakeResult Scheduler::with_slot(TakeResult taken) {
  if (!taken.block || !taken.block->slot) return taken;
  try {
    direct_to_slot(*taken.block);
  } catch (const DeviceFailure& failure) {
    ReadError error = failure.error();
    error.source = taken.block->source;
    fail(std::move(error));
    taken.block.reset();
    taken.is_finished = true;
  }
  return taken;
}

void Scheduler::land(Lane which, const Block& block) {
  const std::lock_guard lock(mutex_);
  count_landed(which, block);
}

void Scheduler::set_aside(Lane which, Block block, TimePoint due) {
  take_slot_back(block);
  const std::lock_guard lock(mutex_);
  queue_again(lane_state(which), std::move(block), due);
}

void Scheduler::wake_starved() {
  const std::lock_guard lock(mutex_);
  wake_starved_locked();
}

}  // namespace streamer
