// The memory of items: of the engine's own on this machine, and what the consumer is asked for, on
// devices and of its own.
//
// Items get it in order, as far as the limit allows (memory_budget.h); of several devices, the one
// that holds least gets it next, unless items are delivered in their order. Where the system gives
// none, an item waits while some may come back. Not thread-safe; used under the scheduler's lock.
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
  // Gives `items` their targets; they and `queue` must outlive it.
  ItemMemory(std::vector<Item>& items, const DeliveryQueue& queue, std::uint64_t limit_bytes);
  ~ItemMemory();
  ItemMemory(const ItemMemory&) = delete;
  ItemMemory& operator=(const ItemMemory&) = delete;

  void set_limit_bytes(std::uint64_t limit_bytes) { budget_.set_limit_bytes(limit_bytes); }

  // Makes sure that the item has memory; false where there is none for it now. Throws
  // std::bad_alloc where none will come.
  bool reserve(std::uint32_t item);

  // Whether reserve() would ask the system for it; of small items, now and then, which is told by
  // none. prepare() does that before, without the scheduler's lock.
  bool is_unprepared(const Item& item) const;
  void prepare(const Item& item) { arena_.prepare(item.size(), item.begin); }
  void trim() { arena_.trim(); }  // after it, without that lock too

  // Asks the consumer, as far as the limit allows.
  void ask();
  bool has_asked() const { return !to_ask_.empty(); }
  // Items that need memory of the consumer's; a few at a time.
  std::vector<std::uint32_t> take_asked();
  // Throws std::invalid_argument for an item that take_asked() did not return.
  void provide(const std::vector<std::uint32_t>& items, const std::vector<std::byte*>& targets);

  // Of an item that the consumer takes; empty where the memory is its own.
  Memory take(std::uint32_t item);
  // The consumer waits for more. Returns whether to try again the items that found no memory.
  bool note_consumer_back() { return budget_.note_consumer_back(); }

  std::uint64_t peak_held_bytes() const { return budget_.peak_held_bytes(); }

  // Gives back what was not taken.
  void release();

 private:
  // What the consumer is asked for in one order.
  struct Queue {
    std::vector<std::uint32_t> items;
    std::size_t next = 0;  // the first whose memory was not asked for
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
  std::vector<bool> is_asked_;            // by item: asked of the consumer, and held; else empty
  std::map<std::int32_t, Queue> queues_;  // by device, or one where items are delivered in order
  bool is_released_ = false;
};

}  // namespace streamer
