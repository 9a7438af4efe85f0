// Host memory for tensors: each allocation belongs to exactly one tensor, and is never written
// again once it was handed over.
//
// Allocations of at least one huge page get their own anonymous mapping, aligned to 2 MiB and
// advised MADV_HUGEPAGE: a first touch then costs one fault for 2 MiB instead of 512 (the largest
// single cost of reading from the page cache). Only whole huge pages are covered, so no memory is
// wasted at the end. Smaller ones come from malloc.
//
// Mappings that come back while a session runs are kept for the next tensor of that session, so a
// consumer that drops what it gets never faults again. What is kept and what sessions hold never
// exceeds the sum of the limits of the sessions that run; without a session nothing is kept. Where
// the system gives no more memory, what is kept is given back before an allocation fails.
//
// Thread-safe. The arena outlives every Memory (it is never destroyed).
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

namespace streamer {

inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;
inline constexpr std::size_t kPageBytes = 4096;

class Arena;

// The memory of one tensor. Move-only; gives its bytes back when destroyed.
class Memory {
 public:
  Memory() = default;
  Memory(Memory&& other) noexcept { swap(other); }
  Memory& operator=(Memory&& other) noexcept {
    Memory(std::move(other)).swap(*this);
    return *this;
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

  // From here on the bytes are the consumer's: they no longer count against any limit.
  void hand_over();

 private:
  friend class Arena;
  void swap(Memory& other) noexcept;

  Arena* arena_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::byte* mapping_ = nullptr;  // null for memory from malloc
  std::size_t mapping_bytes_ = 0;
  bool is_held_ = false;
};

struct ArenaStats {
  std::size_t held_bytes = 0;    // allocated and not yet handed over
  std::size_t cached_bytes = 0;  // mappings kept for reuse
  std::uint64_t reused = 0;      // allocations served from the cache
};

class Arena {
 public:
  // The process's arena.
  static Arena& instance();

  // While a session with this limit runs, freed mappings may be kept.
  void join(std::size_t limit_bytes);
  void leave(std::size_t limit_bytes);

  // `size` bytes whose address equals `file_offset` modulo the page size where that keeps the
  // address a multiple of 8 (so O_DIRECT can land in place), else a multiple of 64. Empty for size
  // 0. Throws std::bad_alloc.
  Memory allocate(std::size_t size, std::uint64_t file_offset);

  ArenaStats stats();

  // Held while the process forks, so that the child never inherits a locked arena.
  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork() { mutex_.unlock(); }

 private:
  friend class Memory;
  struct Mapping {
    std::byte* base;
    std::size_t bytes;
  };

  Mapping take_mapping(std::size_t bytes);
  // What `make` gives; where that is null, what it gives once nothing is kept any more.
  template <typename Make>
  std::byte* without_cache_if_short(Make make);
  void give_back_cached();
  void release(Memory& memory);
  void no_longer_held(std::size_t bytes);
  // Gives back cached mappings until at most `keep_bytes` are left. Called with the mutex held.
  std::vector<Mapping> evict_down_to(std::size_t keep_bytes);

  std::mutex mutex_;
  std::vector<Mapping> cached_;   // guarded by mutex_
  std::size_t cached_bytes_ = 0;  // guarded by mutex_
  std::size_t held_bytes_ = 0;    // guarded by mutex_
  std::size_t budget_bytes_ = 0;  // guarded by mutex_
  std::uint64_t reused_ = 0;      // guarded by mutex_
};

}  // namespace streamer
