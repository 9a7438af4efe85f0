#include "io/arena.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>

namespace streamer {
namespace {

constexpr std::size_t kMallocAlignment = 64;  // a cache line, and the widest vector load

std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// An anonymous mapping that starts on a huge page: map one huge page more, then cut both ends. Null
// when the system refuses.
std::byte* map_huge(std::size_t bytes) {
  const std::size_t reserved = bytes + kHugePageBytes;
  void* raw = mmap(nullptr, reserved, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  auto* start = static_cast<std::byte*>(raw);
  const auto address = reinterpret_cast<std::uintptr_t>(start);
  const std::size_t head = round_up(address, kHugePageBytes) - address;
  if (head > 0) munmap(start, head);
  if (kHugePageBytes - head > 0) munmap(start + head + bytes, kHugePageBytes - head);
  madvise(start + head, bytes, MADV_HUGEPAGE);  // advice: refusal only costs speed
  return start + head;
}

}  // namespace

Memory::~Memory() {
  if (arena_ != nullptr) arena_->release(*this);
}

void Memory::hand_over() {
  if (is_held_) arena_->no_longer_held(size_);
  is_held_ = false;
}

void Memory::swap(Memory& other) noexcept {
  std::swap(arena_, other.arena_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapping_, other.mapping_);
  std::swap(mapping_bytes_, other.mapping_bytes_);
  std::swap(is_held_, other.is_held_);
}

namespace {

// Never destroyed: tensors may be freed after static destructors ran. Made when the library is
// loaded, and not on first use: a child must not inherit it half made by a thread it does not have.
Arena* const process_arena = [] {
  auto* arena = new Arena();
  pthread_atfork([] { Arena::instance().lock_for_fork(); },
                 [] { Arena::instance().unlock_after_fork(); },
                 [] { Arena::instance().unlock_after_fork(); });
  return arena;
}();

}  // namespace

Arena& Arena::instance() { return *process_arena; }

void Arena::join(std::size_t limit_bytes) {
  const std::lock_guard lock(mutex_);
  budget_bytes_ += limit_bytes;
}

void Arena::leave(std::size_t limit_bytes) {
  std::vector<Mapping> evicted;
  {
    const std::lock_guard lock(mutex_);
    budget_bytes_ -= limit_bytes;
    evicted = evict_down_to(budget_bytes_);
  }
  for (const Mapping& mapping : evicted) munmap(mapping.base, mapping.bytes);
}

template <typename Make>
std::byte* Arena::without_cache_if_short(Make make) {
  std::byte* memory = make();
  if (memory == nullptr) {
    give_back_cached();
    memory = make();
  }
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

Memory Arena::allocate(std::size_t size, std::uint64_t file_offset) {
  Memory memory;
  if (size == 0) return memory;
  if (size < kHugePageBytes) {
    memory.data_ = without_cache_if_short([size] {
      return static_cast<std::byte*>(
          std::aligned_alloc(kMallocAlignment, round_up(size, kMallocAlignment)));
    });
  } else {
    const std::size_t residue = file_offset % 8 == 0 ? file_offset % kPageBytes : 0;
    const Mapping mapping = take_mapping(round_up(residue + size, kPageBytes));
    memory.mapping_ = mapping.base;
    memory.mapping_bytes_ = mapping.bytes;
    memory.data_ = mapping.base + residue;
  }
  memory.arena_ = this;
  memory.size_ = size;
  memory.is_held_ = true;
  const std::lock_guard lock(mutex_);
  held_bytes_ += size;
  return memory;
}

Arena::Mapping Arena::take_mapping(std::size_t bytes) {
  std::vector<Mapping> evicted;
  {
    const std::lock_guard lock(mutex_);
    // Best fit, but never one that would waste more than an eighth of itself.
    auto best = cached_.end();
    for (auto it = cached_.begin(); it != cached_.end(); ++it) {
      const bool fits = it->bytes >= bytes && it->bytes - bytes <= it->bytes / 8;
      if (fits && (best == cached_.end() || it->bytes < best->bytes)) best = it;
    }
    if (best != cached_.end()) {
      const Mapping mapping = *best;
      cached_bytes_ -= mapping.bytes;
      cached_.erase(best);
      ++reused_;
      return mapping;
    }
    const std::size_t wanted = held_bytes_ + bytes;
    evicted = evict_down_to(budget_bytes_ > wanted ? budget_bytes_ - wanted : 0);
  }
  for (const Mapping& mapping : evicted) munmap(mapping.base, mapping.bytes);
  return {without_cache_if_short([bytes] { return map_huge(bytes); }), bytes};
}

void Arena::release(Memory& memory) {
  if (memory.is_held_) no_longer_held(memory.size_);
  if (memory.mapping_ == nullptr) {
    std::free(memory.data_);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    if (held_bytes_ + cached_bytes_ + memory.mapping_bytes_ <= budget_bytes_) {
      cached_.push_back({memory.mapping_, memory.mapping_bytes_});
      cached_bytes_ += memory.mapping_bytes_;
      return;
    }
  }
  munmap(memory.mapping_, memory.mapping_bytes_);
}

void Arena::no_longer_held(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  held_bytes_ -= bytes;
}

void Arena::give_back_cached() {
  std::vector<Mapping> evicted;
  {
    const std::lock_guard lock(mutex_);
    evicted = evict_down_to(0);
  }
  for (const Mapping& mapping : evicted) munmap(mapping.base, mapping.bytes);
}

std::vector<Arena::Mapping> Arena::evict_down_to(std::size_t keep_bytes) {
  std::vector<Mapping> evicted;
  while (cached_bytes_ > keep_bytes) {
    evicted.push_back(cached_.back());
    cached_bytes_ -= cached_.back().bytes;
    cached_.pop_back();
  }
  return evicted;
}

ArenaStats Arena::stats() {
  const std::lock_guard lock(mutex_);
  return {held_bytes_, cached_bytes_, reused_};
}

}  // namespace streamer
