// Which items are complete, in which order the consumer gets them, and which items it took.
//
// Every item is delivered once: when it is complete or, in item order, when all items before it are
// complete as well.
//
// Pure. Not thread-safe; used under the scheduler's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace streamer {

class DeliveryQueue {
 public:
  DeliveryQueue(std::size_t items, bool in_item_order)
      : state_(items, State::kWaiting), in_item_order_(in_item_order) {}

  // Records that the last byte of the item landed.
  void complete(std::uint32_t item) {
    state_[item] = State::kComplete;
    ++completed_;
    if (!in_item_order_) {
      ready_.push_back(item);
      return;
    }
    while (next_in_order_ < state_.size() && state_[next_in_order_] == State::kComplete) {
      ready_.push_back(next_in_order_++);
    }
  }

  bool has_ready() const { return !ready_.empty(); }

  // Returns the items that are ready, and marks them as delivered.
  std::vector<std::uint32_t> deliver() {
    for (const std::uint32_t item : ready_) state_[item] = State::kDelivered;
    delivered_ += ready_.size();
    return std::exchange(ready_, {});
  }

  std::uint64_t delivered() const { return delivered_; }
  bool has_delivered_all() const { return delivered_ == state_.size(); }
  bool has_completed_all() const { return completed_ == state_.size(); }

  // Whether the item is delivered and not taken yet.
  bool may_take(std::uint32_t item) const {
    return item < state_.size() && state_[item] == State::kDelivered;
  }
  void take(std::uint32_t item) {
    state_[item] = State::kTaken;
    while (front_ < state_.size() && state_[front_] == State::kTaken) ++front_;
  }

  // Returns the first item that is not taken; the number of items if all are taken.
  std::uint32_t front() const { return front_; }
  bool is_in_item_order() const { return in_item_order_; }

 private:
  enum class State : std::uint8_t { kWaiting, kComplete, kDelivered, kTaken };

  std::vector<State> state_;  // by item
  std::vector<std::uint32_t> ready_;
  bool in_item_order_;
  std::uint32_t next_in_order_ = 0;  // the first item that is not ready yet; in item order only
  std::uint32_t front_ = 0;
  std::uint64_t completed_ = 0;
  std::uint64_t delivered_ = 0;
};

}  // namespace streamer
