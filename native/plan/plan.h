// The work of a session, as values: objects, items and spans. An item is a byte range of one object
// with one destination; or equal runs of bytes in such a range, at equal distances. A span is a
// byte range that is actually read: it covers its items and the small gaps between them.
//
// The planner is in Python. The engine checks the rules that it relies on, and does not know about
// tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/read_error.h"
#include "integrity/digest_plan.h"
#include "integrity/seal_plan.h"

namespace streamer {

class PinnedSlot;

// Values in place of a device number, for the memory of this machine. The engine allocates memory
// for kHost. The consumer provides memory for kConsumersHost, like memory of a device: it locks the
// memory for a device that only the consumer can copy to.
inline constexpr std::int32_t kHost = -1;
inline constexpr std::int32_t kConsumersHost = -2;

inline bool is_on_device(std::int32_t device) { return device >= 0; }

struct Item {
  std::uint32_t source = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  // The caller's own memory, on `device`. If this is null, the engine allocates host memory, or
  // requests device memory from its consumer.
  std::byte* target = nullptr;
  std::int32_t device = kHost;
  // If `run` is not 0, the item has only the bytes of the runs of this length that begin `stride`
  // bytes apart. They lie one after the other in the memory of the item.
  std::uint64_t run = 0;
  std::uint64_t stride = 0;

  std::uint64_t size() const { return run == 0 ? end - begin : ((end - begin) / stride + 1) * run; }
};

struct Span {
  std::uint32_t source = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint32_t first_item = 0;  // the items of a span are consecutive
  std::uint32_t item_count = 0;
};

// An item that is read from a file of a cache. If its bytes do not have this CRC32C, the item is
// read from the source of its object.
struct CachedItem {
  std::uint32_t item = 0;
  std::uint32_t origin = 0;
  std::uint64_t crc = 0;
};

struct Plan {
  std::vector<Item> items;
  std::vector<Span> spans;
  DigestPlan digests{};
  std::vector<CachedItem> cached{};
  SealPlan seals{};
  std::vector<std::uint32_t> peers{};      // sources that are caches of other machines
  std::vector<std::uint32_t> held_back{};  // items that no span reads until they are released
};

// An item that was held back, and the source to read it from: that of its object, or a peer, whose
// bytes must have this CRC32C.
struct ReleasedItem {
  std::uint32_t item = 0;
  std::uint32_t source = 0;
  std::uint64_t crc = 0;
};

// Throws std::invalid_argument unless all of these hold. Every span is non-empty, names an existing
// source, and holds its items in ascending order without overlap. Every item of non-zero size is in
// exactly one span or held back, and no other item is held back. All items of a span are for one
// device, because a block passes through the pinned memory of one device. There are as many digests
// as items, or none. Cached items and their origins exist, and so do peers. There are as many
// sealed items as items, or none, and the tags of all their pieces exist.
void check_plan(const Plan& plan, std::uint32_t source_count);

// Returns the number of bytes of each source's items. Counting the bytes of its spans would be too
// much, because only some of their gaps are read.
std::vector<std::uint64_t> wanted_bytes(const Plan& plan, std::uint32_t source_count);

// The destination of consecutive bytes of a block. If the target is null, the bytes are dropped:
// they are a gap between two wanted items.
struct Segment {
  std::byte* target = nullptr;
  std::uint64_t size = 0;
  std::uint32_t item = kNoItem;

  static constexpr std::uint32_t kNoItem = UINT32_MAX;
};

// The checksum that a server announced for a response, and the checksum of the part that is
// received so far.
struct AnswerCheck {
  std::uint64_t begin = 0;     // where the response begins in the object; it ends with the block
  std::uint64_t expected = 0;  // the checksum of all bytes of the response
  std::uint64_t received = 0;  // the checksum of the bytes received
};

// The unit of work: one contiguous read, scattered over its destinations.
struct Block {
  std::uint32_t source = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  // The destinations of the block's bytes, in order. They never change.
  std::vector<Segment> destinations;

  // The device of the destinations, or kHost. If the block has a slot, its bytes are read into the
  // slot as one piece and copied from there to their destinations.
  std::int32_t device = kHost;
  std::shared_ptr<PinnedSlot> slot;
  std::optional<Segment> in_slot;

  bool is_reread = false;      // its item had a wrong digest at the first read
  std::uint64_t received = 0;  // the bytes in place so far; a retry continues after them
  // If set, some of the received bytes are good only if the whole response has the right checksum.
  std::optional<AnswerCheck> answer;
  // The fields below are the history of the block (see net/retry.h).

  // The next attempt uses an existing connection if there is one, because a new connection got no
  // response.
  bool prefers_open_connection = false;
  // Requests that were abandoned because the server did not serve their connection. They do not
  // count as attempts.
  int times_unserved = 0;
  int attempts = 0;             // attempts that were started
  int attempts_in_outages = 0;  // attempts that failed because the whole server failed
  int wrong_answers = 0;
  int renewals = 0;
  TimePoint first_started{};  // the start of the first attempt
  std::string first_failure;  // how the first attempt failed, for the final error
  std::shared_ptr<const ReadError> last_failure;  // the error if the block times out in the queue

  std::uint64_t size() const { return end - begin; }

  // Returns the number of bytes that belong to items. The other bytes belong to gaps.
  std::uint64_t wanted_bytes() const {
    std::uint64_t bytes = 0;
    for (const Segment& segment : destinations) {
      if (segment.item != Segment::kNoItem) bytes += segment.size;
    }
    return bytes;
  }

  // The memory that a reader fills.
  std::span<const Segment> read_targets() const {
    if (in_slot) return {&*in_slot, 1};
    return destinations;
  }
  // Returns the memory that holds the bytes of a destination. The destination begins at `position`
  // in the object.
  const std::byte* read_bytes(const Segment& destination, std::uint64_t position) const {
    return in_slot ? in_slot->target + (position - begin) : destination.target;
  }
  // Gives the slot back after its bytes were copied or are no longer wanted.
  void leave_slot() {
    slot.reset();
    in_slot.reset();
  }

  // Returns the offset in the object of the first byte that is missing or not yet verified.
  std::uint64_t first_open() const { return answer ? answer->begin : begin + received; }
  // Discards the bytes from first_open() on.
  void forget_open() {
    received = first_open() - begin;
    answer.reset();
  }
};

// Whether the block is read straight into the memory of its device, without a slot.
inline bool is_read_by_gpudirect(const Block& block) {
  return is_on_device(block.device) && !block.slot;
}

}  // namespace streamer
