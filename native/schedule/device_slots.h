// What the scheduler does for one device: gives blocks a slot of its pinned ring before they are
// read, and takes it back. Under the scheduler's lock, except direct_to_slot().
#pragma once

#include <memory>

#include "cuda/pinned_ring.h"
#include "plan/plan.h"
#include "schedule/device_sink.h"

namespace streamer {

struct DeviceSlots {
  std::shared_ptr<PinnedRing> ring;
  std::shared_ptr<RingUser> user;
  DeviceSink* sink = nullptr;

  // True when the block has a slot now; else the ring will wake the user.
  bool try_give_slot(Block& block) const;
};

// Gives the slot back, and with it what the block had received.
void take_slot_back(Block& block);

// Pins the slot and has the block read into it. Without a lock: the first use of a slot takes
// milliseconds, and gives true. Throws DeviceFailure.
bool direct_to_slot(Block& block);

}  // namespace streamer
