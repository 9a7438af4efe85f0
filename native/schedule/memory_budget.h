// How many bytes of items may be held at a time: reserved, and not yet taken by the consumer.
//
// An item that finds nothing else held may be reserved whatever its size (a tensor above the limit
// is read alone), and so may the first one that is not taken (delivery in item order cannot
// deadlock when lanes share the limit).
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
  // What is held already stays, even if it is more.
  void set_limit_bytes(std::uint64_t limit_bytes) { limit_bytes_ = limit_bytes; }
  std::uint64_t held_bytes() const { return held_bytes_; }
  std::uint64_t peak_held_bytes() const { return peak_held_bytes_; }

  // `is_front`: of the first item that is not taken.
  bool may_hold(std::uint64_t bytes, bool is_front) const {
    return held_bytes_ == 0 || is_front || held_bytes_ + bytes <= limit_bytes_;
  }
  void hold(std::uint64_t bytes) {
    held_bytes_ += bytes;
    peak_held_bytes_ = std::max(peak_held_bytes_, held_bytes_);
  }

  // The consumer took an item of so many bytes: what it took before may be let go of by now.
  void hand_over(std::uint64_t bytes) {
    held_bytes_ -= bytes;
    is_consumer_back_ = false;
  }
  void hold_nothing() { held_bytes_ = 0; }

  // The system gave no memory. Whether some may come back: what the consumer took may until it
  // asks for more; what is held, if the consumer can get that without this item.
  bool may_come_back(bool is_awaited) {
    const bool may = !is_consumer_back_ || (held_bytes_ > 0 && !is_awaited);
    is_short_ = is_short_ || may;
    return may;
  }
  // The consumer waits for more. Whether what found no memory is to be tried again.
  bool note_consumer_back() {
    is_consumer_back_ = true;
    return std::exchange(is_short_, false);
  }

 private:
  std::uint64_t limit_bytes_;
  std::uint64_t held_bytes_ = 0;
  std::uint64_t peak_held_bytes_ = 0;
  bool is_short_ = false;          // the system gave none, and may give some later
  bool is_consumer_back_ = false;  // it took nothing since it last waited
};

}  // namespace streamer
