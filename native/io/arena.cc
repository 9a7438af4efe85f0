#include "io/arena.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>

namespace streamer {
namespace {

// Never destroyed, because tensors may be freed after static destructors ran. It is created when
// the library is loaded. If it were created on first use, a forked child could inherit an arena
// that another thread was still creating.
Arena* const process_arena = [] {
  auto* arena = new Arena();
  pthread_atfork([] { Arena::instance().lock_for_fork(); },
                 [] { Arena::instance().unlock_after_fork(); },
                 [] { Arena::instance().unlock_after_fork(); });
  return arena;
}();

}  // namespace

Arena& Arena::instance() { return *process_arena; }

template <typename Change>
auto Arena::update(ArenaChunk& chunk, Change change) {
  struct Recount {
    Recount(std::size_t& sum, const ArenaChunk& its) : sum_(sum), its_(its) {
      sum_ -= its_.unused_bytes();
    }
    ~Recount() { sum_ += its_.unused_bytes(); }
    Recount(const Recount&) = delete;
    Recount& operator=(const Recount&) = delete;
    std::size_t& sum_;
    const ArenaChunk& its_;
  };
  const Recount recount(unused_bytes_, chunk);
  return change(chunk);
}

void Arena::join(std::size_t limit_bytes) {
  const std::lock_guard lock(mutex_);
  budget_bytes_ += limit_bytes;
}

void Arena::leave(std::size_t limit_bytes) {
  Evicted evicted;
  {
    const std::lock_guard lock(mutex_);
    budget_bytes_ -= limit_bytes;
    evict_down_to(budget_bytes_, evicted);
  }
  give_back(evicted);
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
  if (size < kOwnMappingBytes) {
    place(memory, size, file_offset);
  } else {
    map(memory, size, file_offset);
  }
  memory.arena_ = this;
  memory.size_ = size;
  memory.is_held_ = true;
  held_bytes_ += size;
  return memory;
}

void Arena::map(Memory& memory, std::size_t size, std::uint64_t file_offset) {
  const Mapping mapping = take_mapping(mapping_bytes_of(size, file_offset));
  memory.mapping_ = mapping.base;
  memory.mapping_bytes_ = mapping.bytes;
  memory.data_ = mapping.base + residue_of(size, file_offset);
}

// Returns the best fit. A mapping that would waste more than an eighth of itself does not count.
std::vector<Arena::Mapping>::iterator Arena::best_kept(std::size_t bytes) {
  auto best = cached_.end();
  for (auto it = cached_.begin(); it != cached_.end(); ++it) {
    const bool fits = it->bytes >= bytes && it->bytes - bytes <= it->bytes / 8;
    if (fits && (best == cached_.end() || it->bytes < best->bytes)) best = it;
  }
  return best;
}

Arena::Mapping Arena::take_mapping(std::size_t bytes) {
  Evicted evicted;
  {
    const std::lock_guard lock(mutex_);
    const auto best = best_kept(bytes);
    if (best != cached_.end()) {
      const Mapping mapping = *best;
      mapped_bytes_ -= mapping.bytes;
      cached_.erase(best);
      if (mapping.was_used) ++reused_;
      return mapping;
    }
    make_room(bytes, evicted);
  }
  give_back(evicted);
  return {without_cache_if_short([bytes] { return map_huge(bytes); }), bytes};
}

void Arena::place(Memory& memory, std::size_t size, std::uint64_t file_offset) {
  Evicted evicted;
  {
    const std::lock_guard lock(mutex_);
    do {
      memory.data_ = place_in_current(size, file_offset);
    } while (memory.data_ == nullptr && add_chunk(size, evicted));
    memory.chunk_ = memory.data_ == nullptr ? nullptr : current_for(size);
  }
  give_back(evicted);
  if (memory.data_ != nullptr) return;
  // The system has no room for a whole chunk, for example under a limit on the address space.
  memory.data_ = without_cache_if_short([size] {
    return static_cast<std::byte*>(
        std::aligned_alloc(kTensorAlignment, round_up(size, kTensorAlignment)));
  });
}

std::byte* Arena::place_in_current(std::size_t size, std::uint64_t file_offset) {
  ArenaChunk* const current = current_for(size);
  if (current == nullptr) return nullptr;
  return update(*current, [&](ArenaChunk& chunk) { return chunk.place(size, file_offset); });
}

bool Arena::add_chunk(std::size_t size, Evicted& evicted) {
  ArenaChunk*& current = current_for(size);
  if (current != nullptr) {
    ArenaChunk& full = *current;
    retire(full);
    if (full.is_empty()) settle_empty(full, evicted);
  }
  if (!spare_.empty()) {
    current = spare_.back();
    spare_.pop_back();
    update(*current, [](ArenaChunk& chunk) { chunk.restart(); });
    if (current->was_restarted()) ++reused_;
    return true;
  }
  make_room(size, evicted);
  const std::size_t bytes = chunk_bytes_for(size);
  std::byte* const base = map_chunk(bytes, size);
  if (base == nullptr) return false;
  current = chunks_.emplace_back(std::make_unique<ArenaChunk>(base, bytes)).get();
  return true;
}

std::size_t Arena::chunk_bytes_for(std::size_t size) const {
  const bool is_large = size >= kLargeStepBytes && budget_bytes_ / 8 >= kLargeChunkBytes;
  return is_large ? kLargeChunkBytes : kChunkBytes;
}

void Arena::retire(ArenaChunk& chunk) {
  std::replace(current_.begin(), current_.end(), &chunk, static_cast<ArenaChunk*>(nullptr));
  chunk.retire();
}

void Arena::release(Memory& memory) {
  if (memory.is_held_) subtract_held(memory.size_);
  if (memory.chunk_ != nullptr) {
    remove(*memory.chunk_, memory);
  } else if (memory.mapping_ == nullptr) {
    std::free(memory.data_);
  } else {
    {
      const std::lock_guard lock(mutex_);
      if (held_bytes_ + cached_bytes() + memory.mapping_bytes_ <= budget_bytes_) {
        cached_.push_back({memory.mapping_, memory.mapping_bytes_});
        mapped_bytes_ += memory.mapping_bytes_;
        return;
      }
    }
    munmap(memory.mapping_, memory.mapping_bytes_);
  }
}

void Arena::remove(ArenaChunk& chunk, const Memory& memory) {
  Evicted evicted;
  {
    const std::lock_guard lock(mutex_);
    update(chunk, [&](ArenaChunk& its) { its.remove(memory.data_, memory.size_); });
    if (chunk.is_empty()) {
      settle_empty(chunk, evicted);
    } else if (is_over_limit()) {
      evicted.unused.push_back(pin_unused(chunk, memory.data_, memory.size_));
    }
  }
  give_back(evicted);
}

void Arena::settle_empty(ArenaChunk& chunk, Evicted& evicted) {
  const bool is_kept = is_current(chunk) ? budget_bytes_ > 0 : !is_over_limit();
  if (!is_kept || !chunk.is_whole()) return dispose(chunk, evicted);
  if (is_current(chunk)) {
    update(chunk, [](ArenaChunk& its) { its.restart(); });
  } else {
    spare_.push_back(&chunk);
  }
}

void Arena::dispose(ArenaChunk& chunk, Evicted& evicted) {
  if (is_current(chunk)) retire(chunk);
  unused_bytes_ -= chunk.unused_bytes();
  evicted.mappings.push_back({chunk.base(), chunk.bytes()});
  std::erase_if(chunks_, [&chunk](const auto& each) { return each.get() == &chunk; });
}

Arena::Unused Arena::pin_unused(ArenaChunk& chunk, const std::byte* data, std::size_t size) {
  return {&chunk, update(chunk, [&](ArenaChunk& its) { return its.pin_unused(data, size); })};
}

void Arena::give_back(const Evicted& evicted) {
  for (const Mapping& mapping : evicted.mappings) munmap(mapping.base, mapping.bytes);
  for (const Unused& unused : evicted.unused) {
    for (const MemoryRange& range : unused.pages) madvise(range.begin, range.bytes, MADV_DONTNEED);
    Evicted emptied;
    {
      const std::lock_guard lock(mutex_);
      unused.chunk->unpin();
      if (unused.chunk->is_empty()) settle_empty(*unused.chunk, emptied);
    }
    for (const Mapping& mapping : emptied.mappings) munmap(mapping.base, mapping.bytes);
  }
}

void Arena::give_back_cached() {
  Evicted evicted;
  {
    const std::lock_guard lock(mutex_);
    evict_down_to(0, evicted);
  }
  give_back(evicted);
}

void Arena::make_room(std::size_t bytes, Evicted& evicted) {
  const std::size_t wanted = held_bytes_ + bytes;
  evict_down_to(budget_bytes_ > wanted ? budget_bytes_ - wanted : 0, evicted);
}

void Arena::evict_down_to(std::size_t keep_bytes, Evicted& evicted) {
  while (cached_bytes() > keep_bytes && !cached_.empty()) {
    evicted.mappings.push_back(cached_.back());
    mapped_bytes_ -= cached_.back().bytes;
    cached_.pop_back();
  }
  while ((cached_bytes() > keep_bytes || budget_bytes_ == 0) && !spare_.empty()) {
    dispose(*spare_.back(), evicted);
    spare_.pop_back();
  }
  for (ArenaChunk* const current : current_) {
    if (budget_bytes_ == 0 && current != nullptr && current->is_empty()) dispose(*current, evicted);
  }
  for (std::size_t i = 0; i < chunks_.size() && cached_bytes() > keep_bytes; ++i) {
    ArenaChunk& chunk = *chunks_[i];
    if (chunk.unused_bytes() == 0) continue;
    if (is_current(chunk) && chunk.was_restarted()) retire(chunk);
    evicted.unused.push_back(pin_unused(chunk, chunk.base(), chunk.bytes()));
  }
}

ArenaStats Arena::stats() {
  const std::lock_guard lock(mutex_);
  return {held_bytes_, cached_bytes(), reused_};
}

}  // namespace streamer
