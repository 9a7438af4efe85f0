// Address space in which the memory of several tensors lies head to tail, so that they share huge
// pages. A tensor is placed behind all others; its pages go back one by one when it dies.
//
// Bookkeeping alone: the arena maps the memory, gives pages back, and holds its lock for each call.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "io/huge_pages.h"

namespace streamer {

class ArenaChunk {
 public:
  // Pages are the system's, which takes no part of one back.
  ArenaChunk(std::byte* base, std::size_t bytes);

  std::byte* base() const { return base_; }
  std::size_t bytes() const { return bytes_; }

  bool has_room(std::size_t size, std::uint64_t file_offset) const;
  // A place aligned as Arena::allocate() says; null where no more fits.
  std::byte* place(std::size_t size, std::uint64_t file_offset);
  // The tensor there is gone.
  void remove(const std::byte* data, std::size_t size);
  bool is_empty() const { return live_ == 0 && pins_ == 0; }

  // Bytes, in pages that were touched, that no tensor needs. A page that the next tensor shares
  // counts by its bytes.
  std::size_t unused_bytes() const { return dead_bytes_ + (std::max(touched_, next_) - next_); }

  // Whether an empty chunk has all pages that were touched, so that it can be filled again without
  // a page fault.
  bool is_whole() const { return gone_pages_ == 0; }
  // Of an empty, whole chunk: fills it from its beginning again.
  void restart();
  // Whether touched pages lie behind the last tensor.
  bool was_restarted() const { return touched_ > next_; }
  // Places nothing more until restart().
  void retire() { is_retired_ = true; }

  // The pages between these addresses that no tensor needs, and that none will get before the chunk
  // is empty. It is not until unpin(): so they may be given back without the arena's lock.
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
  std::size_t next_ = 0;     // offset behind the last tensor
  std::size_t touched_ = 0;  // offset behind the last tensor before restart()
  std::size_t dead_bytes_ = 0;
  std::size_t gone_pages_ = 0;
  bool is_retired_ = false;
  std::uint32_t live_ = 0;
  std::uint32_t pins_ = 0;
  std::vector<std::uint16_t> users_;  // by page: tensors with bytes in it, or kGone
};

}  // namespace streamer
