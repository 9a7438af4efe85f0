// Walks the memory that a reader fills for a block from front to back. All readers place their
// bytes through it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "plan/plan.h"

namespace streamer {

// The block must outlive the cursor, and stay where it is.
class SegmentCursor {
 public:
  // Starts after the bytes that the block already received.
  explicit SegmentCursor(const Block& block) : segments_(block.read_targets()) {
    skip(block.received);
  }

  bool is_at_end() const { return segment_ == segments_.size(); }

  // Returns the next bytes that have one destination. A null target means that the bytes are
  // dropped.
  Segment piece() const {
    const Segment& segment = segments_[segment_];
    std::byte* target = segment.target == nullptr ? nullptr : segment.target + offset_;
    return {target, segment.size - offset_, segment.item};
  }

  // `bytes` must not exceed the number of bytes that are left.
  void skip(std::uint64_t bytes) {
    while (bytes > 0) {
      const std::uint64_t here = std::min(bytes, segments_[segment_].size - offset_);
      offset_ += here;
      bytes -= here;
      if (offset_ == segments_[segment_].size) {
        ++segment_;
        offset_ = 0;
      }
    }
  }

  // Copies as many bytes as fit, and returns their number.
  std::uint64_t copy(const std::byte* data, std::uint64_t size) {
    std::uint64_t copied = 0;
    while (copied < size && !is_at_end()) {
      const Segment next = piece();
      const std::uint64_t here = std::min(size - copied, next.size);
      if (next.target != nullptr) std::memcpy(next.target, data + copied, here);
      skip(here);
      copied += here;
    }
    return copied;
  }

 private:
  std::span<const Segment> segments_;
  std::size_t segment_ = 0;
  std::uint64_t offset_ = 0;
};

}  // namespace streamer
