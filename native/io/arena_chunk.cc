#include "io/arena_chunk.h"

#include "io/arena.h"

namespace streamer {
namespace {

constexpr std::uint16_t kReturned = UINT16_MAX;
// The number of tensors in one page must stay below kReturned. No kernel has pages above 256 KiB.
static_assert((std::size_t{256} << 10) / kTensorAlignment < kReturned);

}  // namespace

ArenaChunk::ArenaChunk(std::byte* base, std::size_t bytes)
    : base_(base), bytes_(bytes), page_bytes_(page_bytes()), users_(bytes / page_bytes_) {}

std::size_t ArenaChunk::begin_of_next(std::size_t size, std::uint64_t file_offset) const {
  if (!keeps_residue(size, file_offset)) return round_up(next_, kTensorAlignment);
  constexpr std::size_t kUnit = kDirectAlignmentBytes;
  const std::size_t residue = file_offset % kUnit;
  return next_ + (kUnit + residue - next_ % kUnit) % kUnit;
}

bool ArenaChunk::has_room(std::size_t size, std::uint64_t file_offset) const {
  const std::size_t begin = begin_of_next(size, file_offset);
  return !is_retired_ && begin <= bytes_ && bytes_ - begin >= size;
}

std::byte* ArenaChunk::place(std::size_t size, std::uint64_t file_offset) {
  if (!has_room(size, file_offset)) return nullptr;
  const std::size_t begin = begin_of_next(size, file_offset);
  next_ = begin + size;
  for (std::size_t page = begin / page_bytes_; page * page_bytes_ < next_; ++page) ++users_[page];
  ++live_;
  return base_ + begin;
}

void ArenaChunk::remove(const std::byte* data, std::size_t size) {
  const std::size_t begin = offset_of(data);
  for (std::size_t page = begin / page_bytes_; page * page_bytes_ < begin + size; ++page) {
    --users_[page];
  }
  dead_bytes_ += size;
  --live_;
}

void ArenaChunk::restart() {
  touched_ = std::max(touched_, next_);
  next_ = dead_bytes_ = 0;
  is_retired_ = false;
}

std::vector<MemoryRange> ArenaChunk::pin_unused(const std::byte* data, std::size_t size) {
  std::vector<MemoryRange> ranges;
  // The next tensor may start in the page in which the last tensor ends.
  const std::size_t limit = is_retired_ ? round_up(std::max(touched_, next_), page_bytes_)
                                        : next_ / page_bytes_ * page_bytes_;
  const std::size_t end = std::min(offset_of(data) + size, limit);
  for (std::size_t begin = offset_of(data) / page_bytes_ * page_bytes_; begin < end;
       begin += page_bytes_) {
    std::uint16_t& users = users_[begin / page_bytes_];
    if (users != 0) continue;
    users = kReturned;
    ++returned_pages_;
    if (begin < next_) dead_bytes_ -= std::min(dead_bytes_, page_bytes_);
    if (ranges.empty() || ranges.back().begin + ranges.back().bytes != base_ + begin) {
      ranges.push_back({base_ + begin, 0});
    }
    ranges.back().bytes += page_bytes_;
  }
  if (is_retired_ && end == limit) touched_ = 0;
  ++pins_;
  return ranges;
}

}  // namespace streamer
