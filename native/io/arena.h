// Host memory for tensors. Each allocation belongs to exactly one tensor. The engine never writes
// to it after it is handed over.
//
// Tensors lie one after the other in chunks of address space (arena_chunk.h) that are aligned to 2
// MiB and advised MADV_HUGEPAGE. The first touch of 2 MiB then costs one page fault instead of 512.
// (Page faults are the largest single cost of reading from the page cache.) The ends of tensors
// also need no small pages. The largest tensors have their own mapping, of whole huge pages. In
// each chunk or mapping, less than one huge page is touched without belonging to a tensor.
//
// Memory that is freed while a session runs is kept for its next tensors, so a consumer that drops
// its tensors causes no new page faults. Kept memory and memory held by sessions together exceed
// the sum of the limits of all running sessions by at most two chunks. Without a session, no memory
// is kept: the pages of a tensor are returned when it is freed, even if its neighbours are still in
// use. If the system has no more memory, the arena returns kept memory before an allocation fails.
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
// The chunk size for large tensors, used if it is at most an eighth of the limits. Most of the last
// huge page of each chunk stays unused, so fewer chunks waste less.
inline constexpr std::size_t kLargeChunkBytes = 4 * kChunkBytes;
// Tensors of this size and above have their own mapping, because a small chunk has no room for
// them.
inline constexpr std::size_t kOwnMappingBytes = kChunkBytes - kLargeStepBytes;

// Whether the address of the memory equals its file offset modulo the alignment of direct reads, so
// that direct reads can write into place. The offset must be a multiple of 8, because dtypes need
// this alignment.
inline bool keeps_residue(std::size_t size, std::uint64_t file_offset) {
  return size >= kLargeStepBytes && file_offset % 8 == 0;
}

// Returns the offset of the memory in its mapping.
inline std::size_t residue_of(std::size_t size, std::uint64_t file_offset) {
  return keeps_residue(size, file_offset) ? file_offset % kDirectAlignmentBytes : 0;
}

// Returns the size of the mapping for a tensor that has its own mapping.
inline std::size_t mapping_bytes_of(std::size_t size, std::uint64_t file_offset) {
  return round_up(residue_of(size, file_offset) + size, kLargeStepBytes);
}

struct ArenaStats {
  std::size_t held_bytes = 0;    // allocated and not yet handed over
  std::size_t cached_bytes = 0;  // kept for reuse
  std::uint64_t reused = 0;      // number of chunks and mappings that were reused
};

class Arena {
 public:
  // The process's arena.
  static Arena& instance();

  // Each session calls join() when it begins and leave() when it ends. The arena keeps freed memory
  // up to the sum of the limits.
  void join(std::size_t limit_bytes);
  void leave(std::size_t limit_bytes);

  // Returns `size` bytes. If keeps_residue(), their address equals `file_offset` modulo
  // kDirectAlignmentBytes; otherwise it is a multiple of 64. Returns empty memory for size 0.
  // Throws std::bad_alloc.
  Memory allocate(std::size_t size, std::uint64_t file_offset);

  // Maps memory for the next allocate() of this size, unless kept memory fits. That allocate() then
  // makes no system call, so it may run under a lock that other threads wait for. If the system has
  // no memory, prepare() does nothing, and allocate() throws. prepare() does not evict kept memory,
  // which takes longer; trim() does, and is called after the allocation.
  void prepare(std::size_t size, std::uint64_t file_offset);
  void trim();
  bool is_prepared(std::size_t size, std::uint64_t file_offset);

  ArenaStats stats();

  // The lock is held while the process forks, so that the child never inherits an arena that
  // another thread has locked.
  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork() { mutex_.unlock(); }

 private:
  friend class Memory;
  struct Mapping {
    std::byte* base;
    std::size_t bytes;
    bool was_used = true;  // false: only prepared, without any touched page
  };

  // Pages of a chunk that are about to be returned to the system. Until they are returned, the
  // chunk does not count as empty.
  struct Unused {
    ArenaChunk* chunk;
    std::vector<MemoryRange> pages;
  };
  // Memory that is no longer kept, and that must be returned to the system.
  struct Evicted {
    std::vector<Mapping> mappings;
    std::vector<Unused> unused;
  };

  void place(Memory& memory, std::size_t size, std::uint64_t file_offset);
  void map(Memory& memory, std::size_t size, std::uint64_t file_offset);
  Mapping take_mapping(std::size_t bytes);
  void prepare_mapping(std::size_t bytes);
  void prepare_chunk(std::size_t size, std::uint64_t file_offset);
  // Returns the memory that `make` returns. If `make` returns null, returns all kept memory to the
  // system and calls `make` again.
  template <typename Make>
  std::byte* without_cache_if_short(Make make);
  void release(Memory& memory);
  void remove(ArenaChunk& chunk, const Memory& memory);
  void subtract_held(std::size_t bytes) { held_bytes_ -= bytes; }
  void give_back(const Evicted& evicted);
  void give_back_cached();

  // The caller holds the mutex for all functions below.
  std::byte* place_in_current(std::size_t size, std::uint64_t file_offset);
  bool has_room_in_current(std::size_t size, std::uint64_t file_offset);
  std::vector<Mapping>::iterator best_kept(std::size_t bytes);
  // Makes another chunk the current one. Returns false if the system has no memory.
  bool add_chunk(std::size_t size, Evicted& evicted);
  // Keeps an empty chunk, or adds it to `evicted`.
  void settle_empty(ArenaChunk& chunk, Evicted& evicted);
  void dispose(ArenaChunk& chunk, Evicted& evicted);
  Unused pin_unused(ArenaChunk& chunk, const std::byte* data, std::size_t size);
  std::size_t chunk_bytes_for(std::size_t size) const;
  void make_room(std::size_t bytes, Evicted& evicted);
  // Evicts kept memory until at most `keep_bytes` are left.
  void evict_down_to(std::size_t keep_bytes, Evicted& evicted);
  std::size_t cached_bytes() const { return mapped_bytes_ + unused_bytes_; }
  // Small tensors have their own chunks, so a small tensor in use does not keep the memory of large
  // ones.
  ArenaChunk*& current_for(std::size_t size) { return current_[size < kLargeStepBytes]; }
  bool is_current(const ArenaChunk& chunk) const {
    return &chunk == current_[0] || &chunk == current_[1];
  }
  void retire(ArenaChunk& chunk);
  bool is_over_limit() const { return held_bytes_ + cached_bytes() > budget_bytes_; }
  // Changes a chunk, and updates `unused_bytes_`.
  template <typename Change>
  auto update(ArenaChunk& chunk, Change change);

  // Changes with each tensor that is allocated or handed over. Atomic, because the change takes no
  // lock.
  std::atomic<std::size_t> held_bytes_ = 0;
  std::mutex mutex_;

  // Guarded by mutex_:
  std::vector<std::unique_ptr<ArenaChunk>> chunks_;
  std::array<ArenaChunk*, 2> current_{};  // for the next tensor: [0] large, [1] small
  std::vector<ArenaChunk*> spare_;        // empty chunks with all their touched pages
  std::vector<Mapping> cached_;           // mappings of freed large tensors
  std::size_t mapped_bytes_ = 0;          // size of cached_
  std::size_t unused_bytes_ = 0;          // unused bytes of all chunks
  std::size_t budget_bytes_ = 0;
  std::uint64_t reused_ = 0;
};

}  // namespace streamer
