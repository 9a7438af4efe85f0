// A chunk of address space in which the memory of several tensors lies without gaps, so that they
// share huge pages. A new tensor is placed after all others. When a tensor is freed, its pages are
// returned one by one.
//
// This class only does the bookkeeping: the arena maps the memory, returns pages, and holds its
// lock for each call.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "io/huge_pages.h"

namespace streamer {

class ArenaChunk {
 public:
  // Counts in pages of the system, because the system only takes back whole pages.
  ArenaChunk(std::byte* base, std::size_t bytes);

  std::byte* base() const { return base_; }
  std::size_t bytes() const { return bytes_; }

  bool has_room(std::size_t size, std::uint64_t file_offset) const;
  // Returns a place with the alignment of Arena::allocate(); null if there is no room.
  std::byte* place(std::size_t size, std::uint64_t file_offset);
  // Records that the tensor at this place was freed.
  void remove(const std::byte* data, std::size_t size);
  bool is_empty() const { return live_ == 0 && pins_ == 0; }

  // Returns the number of bytes in touched pages that no tensor needs. A page that the next tensor
  // will share counts with its unused bytes.
  std::size_t unused_bytes() const { return dead_bytes_ + (std::max(touched_, next_) - next_); }

  // Whether no touched page of the chunk was returned. Such a chunk can be refilled without page
  // faults after it is empty.
  bool is_whole() const { return returned_pages_ == 0; }
  // Places tensors from the beginning again. The chunk must be empty and whole.
  void restart();
  // Whether there are touched pages after the last tensor.
  bool was_restarted() const { return touched_ > next_; }
  // Places no more tensors until restart().
  void retire() { is_retired_ = true; }

  // Returns the pages of this range that no tensor needs now, and that no tensor will get before
  // the chunk is empty. The chunk does not count as empty until unpin(), so the pages can be
  // returned without the arena's lock.
  std::vector<MemoryRange> pin_unused(const std::byte* data, std::size_t size);
  void unpin() { --pins_; }

 private:
  std::size_t begin_of_next(std::size_t size, std::uint64_t file_offset) const;
  std::size_t offset_of(const std::byte* data) const {
    return static_cast<std::size_t>(data - base_);
  }

  std::byte* const base_;
  const std::size_t bytes_;
  const std::size_t page_bytes_;
  std::size_t next_ = 0;     // offset after the last tensor
  std::size_t touched_ = 0;  // offset after the last tensor before restart()
  std::size_t dead_bytes_ = 0;
  std::size_t returned_pages_ = 0;
  bool is_retired_ = false;
  std::uint32_t live_ = 0;
  std::uint32_t pins_ = 0;
  std::vector<std::uint16_t> users_;  // by page: number of tensors with bytes in it, or kReturned
};

}  // namespace streamer
