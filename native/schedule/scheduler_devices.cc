// The part of the scheduler for devices: slots of pinned memory, and blocks that landed.
#include <algorithm>
#include <utility>

#include "schedule/scheduler.h"

namespace streamer {
void Scheduler::add_device(std::int32_t device, DeviceSlots lane) {
  const std::lock_guard lock(mutex_);
  devices_[device] = std::move(lane);
}

void Scheduler::set_gpudirect(std::uint32_t source, bool is_gpudirect) {
  const std::lock_guard lock(mutex_);
  if (!is_gpudirect) {
    gpudirect_sources_.erase(source);
    return;
  }
  const bool has_runs = std::ranges::any_of(plan_.items, [source](const Item& item) {
    return item.source == source && item.run != 0 && is_on_device(item.device);
  });
  // To be compared or decrypted there; or as a request for each run would cost more.
  const bool is_in_host_memory =
      !ledger_.is_empty() || !seals_.is_empty() || cached_.holds(source) || has_runs;
  if (!is_in_host_memory) gpudirect_sources_.insert(source);
}

bool Scheduler::needs_slot(std::int32_t device, std::uint32_t source) const {
  return is_on_device(device) && !gpudirect_sources_.contains(source);
}

bool Scheduler::try_give_slot(Block& block, Search& search) {
  if (block.slot || !needs_slot(block.device, block.source)) return true;
  if (search.short_of_slots.contains(block.device)) return false;
  if (devices_.at(block.device).try_give_slot(block)) return true;
  search.short_of_slots.insert(block.device);
  return false;
}

// Called without the lock. Evicts memory that is kept beyond the limit, and pins the slot of a
// block that needs one.
TakeResult Scheduler::after_lock(TakeResult taken) {
  if (taken.is_trim_due) memory_.trim();
  if (!taken.block || !taken.block->slot) return taken;
  try {
    taken.has_pinned = direct_to_slot(*taken.block);
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
  const Locked lock(*this);
  count_landed(which, block);
}

void Scheduler::requeue_until_renewed(Lane which, Block block, TimePoint due) {
  take_slot_back(block);
  const Locked lock(*this);
  queue_again(queue_of(which), std::move(block), due);
}

}  // namespace streamer
