// What a session reads, as values: objects, items (a byte range of one object with one destination)
// and spans (the byte ranges that are really read, each covering its items and the small gaps
// between them).
//
// The planner is in Python; the engine checks what it must rely on and knows nothing of tensors.
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

namespace streamer {

class PinnedSlot;

// Device numbers that are none: this machine's memory, which the engine allocates, or which it asks
// of its consumer as a device's (to be locked for a device that only the consumer can copy to).
inline constexpr std::int32_t kHost = -1;
inline constexpr std::int32_t kConsumersHost = -2;

inline bool is_on_device(std::int32_t device) { return device >= 0; }

struct Item {
  std::uint32_t source = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  // The caller's own memory, on `device`. Null: the engine allocates, on the host; for a device it
  // asks its consumer.
  std::byte* target = nullptr;
  std::int32_t device = kHost;

  std::uint64_t size() const { return end - begin; }
};

struct Span {
  std::uint32_t source = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint32_t first_item = 0;  // items of this span are consecutive
  std::uint32_t item_count = 0;
};

struct Plan {
  std::vector<Item> items;
  std::vector<Span> spans;
  DigestPlan digests{};
};

// Throws std::invalid_argument unless: every span is non-empty, names an existing source, and holds
// its items in ascending order without overlap; every item of non-zero size is in exactly one span;
// all items of a span are for one device (a block passes through the pinned memory of one); there
// are as many digests as items, or none.
void check_plan(const Plan& plan, std::uint32_t source_count);

// By source: the bytes of its items. Not those of its spans, whose gaps are read only in part.
std::vector<std::uint64_t> wanted_bytes(const Plan& plan, std::uint32_t source_count);

// Where a run of bytes of a block goes. A null target drops the bytes (a gap between two wanted
// items).
struct Segment {
  std::byte* target = nullptr;
  std::uint64_t size = 0;
  std::uint32_t item = kNoItem;

  static constexpr std::uint32_t kNoItem = UINT32_MAX;
};

// What a server said of the bytes of an answer that is not complete yet, and what came of them.
struct AnswerCheck {
  std::uint64_t begin = 0;     // of the answer, in the object; it ends with the block
  std::uint64_t expected = 0;  // the checksum of all its bytes
  std::uint64_t received = 0;  // the checksum of those that came
};

// The unit of work: one contiguous read, scattered over its destinations.
struct Block {
  std::uint32_t source = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  // Where its bytes belong, in order; the same on its whole way.
  std::vector<Segment> destinations;

  // For a device (else kHost). With a slot, its bytes are read into that, in one piece, and copied
  // from there to their destinations.
  std::int32_t device = kHost;
  std::shared_ptr<PinnedSlot> slot;
  std::optional<Segment> in_slot;

  bool is_reread = false;      // its item was read before, and was wrong
  std::uint64_t received = 0;  // good bytes so far; a retry continues behind them
  // Some of them are good only if the whole answer is.
  std::optional<AnswerCheck> answer;
  // What became of it so far; see net/retry.h.
  // The next attempt takes a connection that is there, if one is: another one found no answer.
  bool is_for_known_connection = false;
  int times_unserved = 0;       // given up on a connection that was not served; no attempts
  int attempts = 0;             // started
  int attempts_in_outages = 0;  // of these, failed for the server as a whole
  int wrong_answers = 0;
  int renewals = 0;
  TimePoint first_started{};  // of the first attempt
  std::string first_failure;  // how the first attempt failed, for the error of the last
  std::shared_ptr<const ReadError> last_failure;  // where the block's time is up while it waits

  std::uint64_t size() const { return end - begin; }

  // Of items; all others are of gaps.
  std::uint64_t wanted_bytes() const {
    std::uint64_t bytes = 0;
    for (const Segment& segment : destinations) {
      if (segment.item != Segment::kNoItem) bytes += segment.size;
    }
    return bytes;
  }

  // What a reader fills.
  std::span<const Segment> read_targets() const {
    if (in_slot) return {&*in_slot, 1};
    return destinations;
  }
  // The bytes of a destination that begins at `position` in the object, where the reader put them.
  const std::byte* read_bytes(const Segment& destination, std::uint64_t position) const {
    return in_slot ? in_slot->target + (position - begin) : destination.target;
  }
  // Its bytes are copied, or given up.
  void leave_slot() {
    slot.reset();
    in_slot.reset();
  }

  // The first byte, in the object, that is missing or not known to be good.
  std::uint64_t first_open() const { return answer ? answer->begin : begin + received; }
  // Nothing from there on is kept.
  void forget_open() {
    received = first_open() - begin;
    answer.reset();
  }
};

// Once it is handed out: it is read into memory of its device, and no slot lies between.
inline bool is_read_by_gpudirect(const Block& block) {
  return is_on_device(block.device) && !block.slot;
}

}  // namespace streamer
