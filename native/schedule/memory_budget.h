// How many bytes of items may be held at a time. Held bytes are reserved, and not yet taken by the
// consumer.
//
// If no other item is held, an item may be reserved whatever its size. So a tensor above the limit
// is read alone. The first item that is not taken may always be reserved. So delivery in item order
// cannot deadlock if lanes share the limit.
//
// Pure: counts, and allocates nothing. Not thread-safe; used under the scheduler's lock.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

namespace streamer {

class MemoryBudget {
 public:
  explicit MemoryBudget(std::uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  std::uint64_t limit_bytes() const { return limit_bytes_; }
  // Bytes that are already held stay, even if they exceed the new limit.
  void set_limit_bytes(std::uint64_t limit_bytes) { limit_bytes_ = limit_bytes; }
  std::uint64_t held_bytes() const { return held_bytes_; }
  std::uint64_t peak_held_bytes() const { return peak_held_bytes_; }

  // `is_front`: the bytes are of the first item that is not taken.
  bool may_hold(std::uint64_t bytes, bool is_front) const {
    return held_bytes_ == 0 || is_front || held_bytes_ + bytes <= limit_bytes_;
  }
  void hold(std::uint64_t bytes) {
    held_bytes_ += bytes;
    peak_held_bytes_ = std::max(peak_held_bytes_, held_bytes_);
  }

  // Records that the consumer took an item of this size. It may have freed earlier items by now.
  void hand_over(std::uint64_t bytes) {
    held_bytes_ -= bytes;
    is_consumer_back_ = false;
  }
  void hold_nothing() { held_bytes_ = 0; }

  // Returns whether memory may become free, after the system had none. Items that the consumer took
  // may be freed until it asks for more. Held items may be freed if the consumer can get them
  // without the awaited item.
  bool may_come_back(bool is_awaited) {
    const bool may = !is_consumer_back_ || (held_bytes_ > 0 && !is_awaited);
    is_short_ = is_short_ || may;
    return may;
  }
  // Records that the consumer waits for more. Returns whether items without memory must be tried
  // again.
  bool note_consumer_back() {
    is_consumer_back_ = true;
    return std::exchange(is_short_, false);
  }

 private:
  std::uint64_t limit_bytes_;
  std::uint64_t held_bytes_ = 0;
  std::uint64_t peak_held_bytes_ = 0;
  bool is_short_ = false;          // the system had no memory, but may have some later
  bool is_consumer_back_ = false;  // the consumer took nothing since it last waited
};

}  // namespace streamer
