#include "pipeline/device_lane.h"

#include <utility>

namespace streamer {

bool DeviceLane::try_give_slot(Block& block) const {
  if (!block.slot) block.slot = ring->try_acquire(user);
  return block.slot != nullptr;
}

void take_slot_back(Block& block) {
  if (!block.slot) return;
  block.slot.reset();
  block.received = 0;
  if (!block.copies.empty()) block.segments = std::exchange(block.copies, {});
}

void direct_to_slot(Block& block) {
  if (!block.copies.empty()) return;  // a retry that kept its slot
  block.slot->pin();
  block.copies = std::exchange(block.segments, {});
  // Gaps are read too: one piece is cheaper than to leave them out.
  block.segments = {{block.slot->data(), block.size(), Segment::kNoItem}};
}

}  // namespace streamer
