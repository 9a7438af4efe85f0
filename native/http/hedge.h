// A duplicate of a slow request, received aside: whichever of the two is complete first counts.
//
// Both run on one reactor's thread, so there is never a second writer: the duplicate fills memory
// of its own, and only when it is complete, and the slow request has been cancelled, are the bytes
// that are still missing copied to their place. (Dean and Barroso, "The Tail at Scale", 2013.)
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
  // Of what `slow` is still missing; where its answer is to be compared with a checksum, of that
  // whole answer: what came of it cannot be compared without the rest.
  explicit Hedge(const Block& slow)
      : begin_(slow.first_open()),
        end_(slow.end),
        memory_(std::make_unique_for_overwrite<std::byte[]>(end_ - begin_)) {}

  std::uint64_t size() const { return end_ - begin_; }

  // The block that asks for it again.
  Block block(std::uint32_t source) {
    Block duplicate;
    duplicate.attempts = 1;  // so that it is sent as a second attempt would be
    duplicate.first_started = Clock::now();
    duplicate.source = source;
    duplicate.begin = begin_;
    duplicate.end = end_;
    duplicate.destinations = {{memory_.get(), size(), Segment::kNoItem}};
    return duplicate;
  }

  // The duplicate is complete: gives `slow`, which nobody writes to any more, its missing bytes.
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

// How many bytes duplicates may cost: a share of what is asked for anyway, by all reactors of a
// load together: the share of one alone may be less than one request. Thread-safe.
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
