// The memory of items. The engine allocates memory of this machine. The consumer provides memory of
// devices, and also its own memory of this machine.
//
// Items get memory in order, as far as the limit allows (memory_budget.h). With several devices,
// the one that holds the least gets the next memory, unless items are delivered in item order. If
// the system has no memory, an item waits as long as some may be freed. Not thread-safe; used under
// the scheduler's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "io/arena.h"
#include "plan/plan.h"
#include "schedule/delivery_queue.h"
#include "schedule/memory_budget.h"

namespace streamer {

class ItemMemory {
 public:
  // Sets the targets of `items`. Both `items` and `queue` must outlive this object. Items of
  // `unwanted` get no memory before want().
  ItemMemory(std::vector<Item>& items, const DeliveryQueue& queue, std::uint64_t limit_bytes,
             const std::vector<std::uint32_t>& unwanted = {});
  ~ItemMemory();
  ItemMemory(const ItemMemory&) = delete;
  ItemMemory& operator=(const ItemMemory&) = delete;

  void set_limit_bytes(std::uint64_t limit_bytes) { budget_.set_limit_bytes(limit_bytes); }

  // Makes sure that the item has memory. Returns false if there is none for it now. Throws
  // std::bad_alloc if waiting for memory is pointless.
  bool reserve(std::uint32_t item);

  // Whether reserve() would have to request memory for a large item from the system. If so, call
  // prepare() first, without the scheduler's lock. Small items rarely need a request, so the result
  // is false for them.
  bool is_unprepared(const Item& item) const;
  void prepare(const Item& item) { arena_.prepare(item.size(), item.begin); }
  void trim() { arena_.trim(); }  // call after the allocation, also without that lock

  // Makes an item of `unwanted` one that gets memory, after the others.
  void want(std::uint32_t item);
  // Requests memory from the consumer, as far as the limit allows.
  void ask();
  bool has_asked() const { return !to_ask_.empty(); }
  // Returns items that need memory of the consumer, a few at a time.
  std::vector<std::uint32_t> take_asked();
  // Throws std::invalid_argument for an item that take_asked() did not return.
  void provide(const std::vector<std::uint32_t>& items, const std::vector<std::byte*>& targets);

  // Returns the memory of an item that the consumer takes; empty if the consumer provided it.
  Memory take(std::uint32_t item);
  // Records that the consumer waits for more. Returns whether items without memory must be tried
  // again.
  bool note_consumer_back() { return budget_.note_consumer_back(); }

  std::uint64_t peak_held_bytes() const { return budget_.peak_held_bytes(); }

  // Frees all memory that was not taken.
  void release();

 private:
  // Requests to the consumer that are made in one order.
  struct Queue {
    std::vector<std::uint32_t> items;
    std::size_t next = 0;  // the first item whose memory is not requested yet
    std::uint64_t held_bytes = 0;

    bool is_at_end() const { return next == items.size(); }
  };

  bool is_asked(std::uint32_t item) const { return item < is_asked_.size() && is_asked_[item]; }
  Queue& queue_of(const Item& item) { return queues_[queue_.is_in_item_order() ? 0 : item.device]; }

  std::vector<Item>& items_;
  const DeliveryQueue& queue_;
  Arena& arena_ = Arena::instance();
  MemoryBudget budget_;
  std::vector<Memory> memory_;  // by item
  std::deque<std::uint32_t> to_ask_;
  std::vector<bool> is_asked_;            // by item: requested from the consumer, and held
  std::map<std::int32_t, Queue> queues_;  // by device; a single one in item order
  bool is_released_ = false;
};

}  // namespace streamer
