// A duplicate of a slow request, received into separate memory. Of the two requests, the one that
// completes first is used.
//
// Both requests run on the thread of one reactor, and the target memory never has two writers. The
// duplicate fills its own memory. When it is complete, the slow request is cancelled, and then the
// missing bytes are copied to their place. (Dean and Barroso, "The Tail at Scale", 2013.)
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "plan/plan.h"
#include "plan/segment_cursor.h"

namespace streamer {

class Hedge {
 public:
  // Covers the bytes that `slow` has not received yet. If its response has a checksum, covers the
  // whole response, because the received part cannot be verified without the rest.
  explicit Hedge(const Block& slow)
      : begin_(slow.first_open()),
        end_(slow.end),
        memory_(std::make_unique_for_overwrite<std::byte[]>(end_ - begin_)) {}

  std::uint64_t size() const { return end_ - begin_; }

  // Returns the block of the duplicate request.
  Block block(std::uint32_t source) {
    Block duplicate;
    duplicate.attempts = 1;  // sent like a second attempt
    duplicate.first_started = Clock::now();
    duplicate.source = source;
    duplicate.begin = begin_;
    duplicate.end = end_;
    duplicate.destinations = {{memory_.get(), size(), Segment::kNoItem}};
    return duplicate;
  }

  // Copies the missing bytes to `slow` after the duplicate is complete. The slow request must be
  // cancelled before.
  void complete(Block& slow) const {
    slow.forget_open();
    SegmentCursor cursor(slow);
    const std::uint64_t held_bytes = slow.begin + slow.received - begin_;
    cursor.copy(memory_.get() + held_bytes, size() - held_bytes);
    slow.received = slow.size();
  }

 private:
  std::uint64_t begin_;
  std::uint64_t end_;
  std::unique_ptr<std::byte[]> memory_;
};

// The bytes that duplicates may cost: a share of the bytes that all reactors of a load request
// anyway. The share is counted for all reactors together, because the share of one reactor may be
// less than one request. Thread-safe.
class HedgeBudget {
 public:
  explicit HedgeBudget(double percent) : share_(percent / 100) {}

  void record_request(std::uint64_t bytes) { requested_bytes_ += bytes; }

  bool try_spend(std::uint64_t bytes) {
    const auto most = static_cast<std::uint64_t>(static_cast<double>(requested_bytes_) * share_);
    if (hedged_bytes_.fetch_add(bytes) + bytes <= most) return true;
    hedged_bytes_ -= bytes;
    return false;
  }

 private:
  const double share_;
  std::atomic<std::uint64_t> requested_bytes_ = 0;
  std::atomic<std::uint64_t> hedged_bytes_ = 0;
};

}  // namespace streamer
