// What the scheduler does for one device: it gives blocks a slot of the pinned ring before they are
// read, and takes the slot back. Called under the scheduler's lock, except direct_to_slot().
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

  // Returns true if the block has a slot now. Otherwise the ring will wake the user.
  bool try_give_slot(Block& block) const;
};

// Returns the slot to its ring. The bytes that the block had received are lost.
void take_slot_back(Block& block);

// Pins the slot and makes the block read into it. Returns whether the slot was pinned now, which
// takes milliseconds, so call this without a lock. Throws DeviceFailure.
bool direct_to_slot(Block& block);

}  // namespace streamer
