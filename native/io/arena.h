// Host memory for tensors: each allocation belongs to exactly one tensor, and is never written
// again once it was handed over.
//
// Tensors lie head to tail in chunks of address space (arena_chunk.h) that are aligned to 2 MiB and
// advised MADV_HUGEPAGE: a first touch then costs one fault for 2 MiB instead of 512 (the largest
// single cost of reading from the page cache), and the tensors' ends need no small pages. The
// largest tensors have a mapping of their own, of whole huge pages. Less than one huge page of each
// chunk or mapping is touched and belongs to no tensor.
//
// What is freed while a session runs is kept for the next tensors of that session, so a consumer
// that drops what it gets never faults again. What is kept and what sessions hold never exceeds the
// sum of the limits of the sessions that run, but for two chunks; without a session nothing is
// kept: the pages of a tensor go back when it dies, wherever its neighbours live on. Where the
// system gives no more memory, what is kept is given back before an allocation fails.
//
// Thread-safe. The arena outlives every Memory (it is never destroyed).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "io/arena_chunk.h"
#include "io/arena_memory.h"

namespace streamer {

inline constexpr std::size_t kChunkBytes = std::size_t{64} << 20;
// Of large tensors, where a chunk is no more than an eighth of the limits: the huge page at the end
// of each chunk is hardly used, so there are fewer of them.
inline constexpr std::size_t kLargeChunkBytes = 4 * kChunkBytes;
// From here on a tensor has a mapping of its own: a chunk of the smaller kind has no room for it.
inline constexpr std::size_t kOwnMappingBytes = kChunkBytes - kLargeStepBytes;

// Whether memory lies at the address of its file offset modulo what direct reads need, so that they
// can land in place; dtypes need multiples of 8.
inline bool keeps_residue(std::size_t size, std::uint64_t file_offset) {
  return size >= kLargeStepBytes && file_offset % 8 == 0;
}

// Of the memory, which begins a mapping otherwise.
inline std::size_t residue_of(std::size_t size, std::uint64_t file_offset) {
  return keeps_residue(size, file_offset) ? file_offset % kDirectAlignmentBytes : 0;
}

// Of a tensor that has a mapping of its own.
inline std::size_t mapping_bytes_of(std::size_t size, std::uint64_t file_offset) {
  return round_up(residue_of(size, file_offset) + size, kLargeStepBytes);
}

struct ArenaStats {
  std::size_t held_bytes = 0;    // allocated and not yet handed over
  std::size_t cached_bytes = 0;  // kept for reuse
  std::uint64_t reused = 0;      // chunks and mappings that were filled again
};

class Arena {
 public:
  // The process's arena.
  static Arena& instance();

  // While a session with this limit runs, freed mappings may be kept.
  void join(std::size_t limit_bytes);
  void leave(std::size_t limit_bytes);

  // `size` bytes whose address equals `file_offset` modulo kDirectAlignmentBytes if
  // keeps_residue(), else is a multiple of 64. Empty for size 0. Throws std::bad_alloc.
  Memory allocate(std::size_t size, std::uint64_t file_offset);

  // Maps what allocate() will need for this, where nothing that is kept serves: an allocation that
  // follows asks nothing of the system then, and can be made under a lock for which others wait.
  // Where the system gives none, allocate() will tell. No room is made for it: that is for trim(),
  // which takes longer, and is called after that allocation.
  void prepare(std::size_t size, std::uint64_t file_offset);
  void trim();
  bool is_prepared(std::size_t size, std::uint64_t file_offset);

  ArenaStats stats();

  // Held while the process forks, so that the child never inherits a locked arena.
  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork() { mutex_.unlock(); }

 private:
  friend class Memory;
  struct Mapping {
    std::byte* base;
    std::size_t bytes;
    bool was_used = true;  // else it was prepared, and no page of it is there
  };

  // Pages of a chunk that are about to go back; the chunk is pinned.
  struct Unused {
    ArenaChunk* chunk;
    std::vector<MemoryRange> pages;
  };
  // What was kept and is so no more.
  struct Evicted {
    std::vector<Mapping> mappings;
    std::vector<Unused> unused;
  };

  void place(Memory& memory, std::size_t size, std::uint64_t file_offset);
  void map(Memory& memory, std::size_t size, std::uint64_t file_offset);
  Mapping take_mapping(std::size_t bytes);
  void prepare_mapping(std::size_t bytes);
  void prepare_chunk(std::size_t size, std::uint64_t file_offset);
  // What `make` gives; where that is null, what it gives once nothing is kept any more.
  template <typename Make>
  std::byte* without_cache_if_short(Make make);
  void release(Memory& memory);
  void remove(ArenaChunk& chunk, const Memory& memory);
  void no_longer_held(std::size_t bytes) { held_bytes_ -= bytes; }
  void give_back(const Evicted& evicted);
  void give_back_cached();

  // With the mutex held:
  std::byte* place_in_current(std::size_t size, std::uint64_t file_offset);
  bool has_room_in_current(std::size_t size, std::uint64_t file_offset);
  std::vector<Mapping>::iterator best_kept(std::size_t bytes);
  // Makes another chunk the current one; false where the system gives none.
  bool add_chunk(std::size_t size, Evicted& evicted);
  // Keeps it, or adds it to `evicted`.
  void settle_empty(ArenaChunk& chunk, Evicted& evicted);
  void dispose(ArenaChunk& chunk, Evicted& evicted);
  Unused unused(ArenaChunk& chunk, const std::byte* data, std::size_t size);
  std::size_t chunk_bytes_for(std::size_t size) const;
  void make_room(std::size_t bytes, Evicted& evicted);
  // Keeps at most so much.
  void evict_down_to(std::size_t keep_bytes, Evicted& evicted);
  std::size_t cached_bytes() const { return mapped_bytes_ + unused_bytes_; }
  // Small tensors lie in chunks of their own: one that is kept does not keep those of large ones.
  ArenaChunk*& current_for(std::size_t size) { return current_[size < kLargeStepBytes]; }
  bool is_current(const ArenaChunk& chunk) const {
    return &chunk == current_[0] || &chunk == current_[1];
  }
  void retire(ArenaChunk& chunk);
  bool is_over_limit() const { return held_bytes_ + cached_bytes() > budget_bytes_; }
  // Changes a chunk, and keeps `unused_bytes_` right.
  template <typename Change>
  auto changed(ArenaChunk& chunk, Change change);

  // Changes with each tensor that is made and each that is handed over, which need no lock for it.
  std::atomic<std::size_t> held_bytes_ = 0;
  std::mutex mutex_;

  // Guarded by mutex_:
  std::vector<std::unique_ptr<ArenaChunk>> chunks_;
  std::array<ArenaChunk*, 2> current_{};  // where the next tensor goes: a large one, a small one
  std::vector<ArenaChunk*> spare_;        // empty, all of their pages touched
  std::vector<Mapping> cached_;           // of large tensors that are gone
  std::size_t mapped_bytes_ = 0;          // of cached_
  std::size_t unused_bytes_ = 0;          // of all chunks
  std::size_t budget_bytes_ = 0;
  std::uint64_t reused_ = 0;
};

}  // namespace streamer
