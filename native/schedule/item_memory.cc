#include "schedule/item_memory.h"

#include <algorithm>
#include <new>
#include <stdexcept>
#include <utility>

namespace streamer {
namespace {

// Allocations the consumer makes between two looks at what is finished: about a millisecond.
constexpr std::ptrdiff_t kMostAskedAtOnce = 256;

}  // namespace

ItemMemory::ItemMemory(std::vector<Item>& items, const DeliveryQueue& queue,
                       std::uint64_t limit_bytes)
    : items_(items), queue_(queue), budget_(limit_bytes), memory_(items.size()) {
  arena_.join(limit_bytes);
  const auto is_asked_for = [](const Item& item) { return item.device != kHost; };
  if (std::any_of(items.begin(), items.end(), is_asked_for)) is_asked_.resize(items.size());
}

ItemMemory::~ItemMemory() { release(); }

bool ItemMemory::reserve(std::uint32_t index) {
  Item& item = items_[index];
  if (item.target != nullptr || item.size() == 0) return true;  // costs no memory of ours
  if (item.device != kHost) return false;                       // asked for, and not there yet
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

void ItemMemory::ask() {
  if (is_asked_.empty()) return;
  for (; next_to_ask_ < items_.size(); ++next_to_ask_) {
    const Item& item = items_[next_to_ask_];
    if (item.device == kHost || item.target != nullptr || item.size() == 0) continue;
    if (!budget_.may_hold(item.size(), next_to_ask_ == queue_.front())) return;
    is_asked_[next_to_ask_] = true;
    budget_.hold(item.size());
    to_ask_.push_back(next_to_ask_);
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
      throw std::invalid_argument("memory is provided for what was asked");
    }
    items_[items[i]].target = targets[i];
  }
}

Memory ItemMemory::take(std::uint32_t index) {
  Memory memory = std::move(memory_[index]);
  if (is_released_) return {};
  memory.hand_over();
  budget_.hand_over(is_asked(index) ? items_[index].size() : memory.size());
  return memory;
}

void ItemMemory::release() {
  if (std::exchange(is_released_, true)) return;
  // Into the arena's cache, while this session's limit still counts.
  for (Memory& memory : memory_) memory = Memory();
  budget_.hold_nothing();
  arena_.leave(budget_.limit_bytes());
}

}  // namespace streamer
