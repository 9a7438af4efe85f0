#include "schedule/item_memory.h"

#include <algorithm>
#include <new>
#include <stdexcept>
#include <unordered_set>
#include <utility>

namespace streamer {
namespace {

// The number of allocations that the consumer makes before it looks for finished items again: about
// a millisecond of work.
constexpr std::ptrdiff_t kMostAskedAtOnce = 256;
// Smaller items need no preparation, because one chunk is enough for many of them.
constexpr std::uint64_t kLeastPrepared = 256 << 10;

}  // namespace

ItemMemory::ItemMemory(std::vector<Item>& items, const DeliveryQueue& queue,
                       std::uint64_t limit_bytes, const std::vector<std::uint32_t>& unwanted)
    : items_(items), queue_(queue), budget_(limit_bytes), memory_(items.size()) {
  arena_.join(limit_bytes);
  const std::unordered_set<std::uint32_t> later(unwanted.begin(), unwanted.end());
  for (std::uint32_t index = 0; index < items.size(); ++index) {
    if (!later.contains(index)) want(index);
  }
}

void ItemMemory::want(std::uint32_t index) {
  const Item& item = items_[index];
  if (item.device == kHost || item.target != nullptr || item.size() == 0) return;
  queue_of(item).items.push_back(index);
  is_asked_.resize(items_.size());
}

ItemMemory::~ItemMemory() { release(); }

bool ItemMemory::reserve(std::uint32_t index) {
  Item& item = items_[index];
  if (item.target != nullptr || item.size() == 0) return true;  // needs none of the engine's memory
  if (item.device != kHost) return false;                       // requested, but not provided yet
  const bool is_front = index == queue_.front();
  if (!budget_.may_hold(item.size(), is_front)) return false;
  try {
    memory_[index] = arena_.allocate(item.size(), item.begin);
  } catch (const std::bad_alloc&) {
    if (!budget_.may_come_back(is_front && queue_.is_in_item_order())) throw;
    return false;
  }
  item.target = memory_[index].data();
  budget_.hold(item.size());
  return true;
}

bool ItemMemory::is_unprepared(const Item& item) const {
  const bool is_ours = item.target == nullptr && item.device == kHost;
  return is_ours && item.size() >= kLeastPrepared && budget_.may_hold(item.size(), false) &&
         !arena_.is_prepared(item.size(), item.begin);
}

void ItemMemory::ask() {
  while (!queues_.empty()) {
    const auto is_poorer = [](const auto& one, const auto& other) {
      const Queue &a = one.second, &b = other.second;
      return std::pair(a.is_at_end(), a.held_bytes) < std::pair(b.is_at_end(), b.held_bytes);
    };
    Queue& queue = std::min_element(queues_.begin(), queues_.end(), is_poorer)->second;
    if (queue.is_at_end()) return;
    const std::uint32_t index = queue.items[queue.next];
    const std::uint64_t bytes = items_[index].size();
    if (!budget_.may_hold(bytes, index == queue_.front())) return;
    ++queue.next;
    is_asked_[index] = true;
    budget_.hold(bytes);
    queue.held_bytes += bytes;
    to_ask_.push_back(index);
  }
}

std::vector<std::uint32_t> ItemMemory::take_asked() {
  const auto count = std::min(std::ssize(to_ask_), kMostAskedAtOnce);
  std::vector<std::uint32_t> next(to_ask_.begin(), to_ask_.begin() + count);
  to_ask_.erase(to_ask_.begin(), to_ask_.begin() + count);
  return next;
}

void ItemMemory::provide(const std::vector<std::uint32_t>& items,
                         const std::vector<std::byte*>& targets) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!is_asked(items[i]) || targets.at(i) == nullptr) {
      throw std::invalid_argument("memory was provided for an item that did not need it");
    }
    items_[items[i]].target = targets[i];
  }
}

Memory ItemMemory::take(std::uint32_t index) {
  Memory memory = std::move(memory_[index]);
  if (is_released_) return {};
  memory.hand_over();
  if (is_asked(index)) queue_of(items_[index]).held_bytes -= items_[index].size();
  budget_.hand_over(is_asked(index) ? items_[index].size() : memory.size());
  return memory;
}

void ItemMemory::release() {
  if (std::exchange(is_released_, true)) return;
  // The memory goes into the arena's cache, while the limit of this session still counts.
  for (Memory& memory : memory_) memory = Memory();
  budget_.hold_nothing();
  arena_.leave(budget_.limit_bytes());
}

}  // namespace streamer
