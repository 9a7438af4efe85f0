#include "schedule/device_lane.h"

#include <utility>

#include "io/arena.h"

namespace streamer {

bool DeviceLane::try_give_slot(Block& block) const {
  if (!block.slot) block.slot = ring->try_acquire(user);
  return block.slot != nullptr;
}

void take_slot_back(Block& block) {
  if (!block.slot) return;
  block.slot.reset();
  block.received = 0;
  block.answer.reset();  // of bytes that are gone: the next answer is compared with its own
  if (!block.copies.empty()) block.segments = std::exchange(block.copies, {});
}

void direct_to_slot(Block& block) {
  if (!block.copies.empty()) return;  // a retry that kept its slot
  block.slot->pin();
  block.copies = std::exchange(block.segments, {});
  // As the bytes lie in their pages of the file, so that a read past the page cache needs no copy.
  // Only the first block of a span begins elsewhere than on a page, and leaves room for that.
  const std::uint64_t ahead = block.begin % kPageBytes;
  const bool has_room = ahead + block.size() <= block.slot->capacity();
  std::byte* const place = block.slot->data() + (has_room ? ahead : 0);
  // Gaps are read too: one piece is cheaper than to leave them out.
  block.segments = {{place, block.size(), Segment::kNoItem}};
}

}  // namespace streamer
