// The memory of one tensor, and the functions that map it.
#pragma once

#include <cstddef>
#include <utility>

#include "base/page_sizes.h"

namespace streamer {

// The alignment of small tensors: a cache line, and the widest vector load.
inline constexpr std::size_t kTensorAlignment = 64;

constexpr std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

class ArenaChunk;
class Arena;

// The memory of one tensor. Move-only; returns its bytes to the arena when destroyed.
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

  // Gives the bytes to the consumer. They no longer count against any limit.
  void hand_over();

 private:
  friend class Arena;
  void swap(Memory& other) noexcept;

  Arena* arena_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  ArenaChunk* chunk_ = nullptr;
  // Set if the tensor has its own mapping. If it has neither a chunk nor a mapping, its memory is
  // from malloc.
  std::byte* mapping_ = nullptr;
  std::size_t mapping_bytes_ = 0;
  bool is_held_ = false;
};

// Returns an anonymous mapping that starts on a huge page, with advice to use huge pages if the
// engine uses them. Returns null if the system refuses.
std::byte* map_huge(std::size_t bytes);
// Maps a chunk of `bytes` bytes for tensors of `size` bytes.
std::byte* map_chunk(std::size_t bytes, std::size_t size);

}  // namespace streamer
