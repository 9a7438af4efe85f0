#include "schedule/device_slots.h"

#include "base/page_sizes.h"

namespace streamer {

bool DeviceSlots::try_give_slot(Block& block) const {
  if (!block.slot) block.slot = ring->try_acquire(user);
  return block.slot != nullptr;
}

void take_slot_back(Block& block) {
  if (!block.slot) return;
  block.leave_slot();
  block.received = 0;
  block.answer.reset();  // the checksum belongs to the discarded bytes
}

bool direct_to_slot(Block& block) {
  if (block.in_slot) return false;  // a retry that kept its slot
  const bool has_pinned = block.slot->pin();
  // The bytes are placed as in their pages of the file, so that a read past the page cache needs no
  // copy. Only the first block of a span may begin within a page, and its slot has room for that.
  const std::uint64_t ahead = block.begin % kDirectAlignmentBytes;
  const bool has_room = ahead + block.size() <= block.slot->capacity();
  std::byte* const place = block.slot->data() + (has_room ? ahead : 0);
  // Gaps are read too: reading one piece is cheaper than leaving gaps out.
  block.in_slot = Segment{place, block.size(), Segment::kNoItem};
  return has_pinned;
}

}  // namespace streamer
