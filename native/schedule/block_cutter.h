// Cuts spans into blocks of a given size, in order, as far as memory allows.
//
// Blocks end at multiples of the block size within the object (so they match the parts of a
// multipart upload and the pages of a file), at the end of their span, or, when memory is short, at
// the end of the last item that could be reserved. One block may hold many small items; one large
// item takes many blocks.
//
// Not thread-safe; the scheduler calls it under its lock.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "plan/plan.h"

namespace streamer {

class BlockCutter {
 public:
  // Makes sure that an item has memory; false when there is none for it now. Called once per item
  // until it succeeds, in item order. Sets `Item::target`.
  using Reserve = std::function<bool(std::uint32_t item)>;

  // The block size for an object at this moment; it may change between two blocks.
  using BlockBytes = std::function<std::uint64_t(std::uint32_t source)>;

  // `items` must outlive the cutter; `spans` are those of one lane, in order.
  BlockCutter(std::vector<Item>& items, std::vector<Span> spans, BlockBytes block_bytes);

  bool is_exhausted() const { return span_ == spans_.size(); }
  // Of the next block; not when exhausted.
  std::uint32_t source() const { return spans_[span_].source; }
  std::uint32_t item() const { return item_; }
  // The first item of the next block that has no memory yet; null where there is none.
  const Item* unreserved() const;
  std::int32_t device() const { return items_[spans_[span_].first_item].device; }

  // The next block, or nothing when exhausted or when memory is short. With `accept_short` false a
  // block cut short by memory to less than a quarter of its size is held back: more memory will
  // make it worth a request.
  std::optional<Block> next(const Reserve& reserve, bool accept_short);

 private:
  std::uint64_t wanted_end(std::uint64_t block_bytes) const;
  std::uint64_t reserve_up_to(const Span& span, std::uint64_t end, const Reserve& reserve);
  std::optional<Block> cut(const Span& span, std::uint64_t end);
  void advance(const Span& span, std::uint64_t end);

  std::vector<Item>& items_;
  std::vector<Span> spans_;
  BlockBytes block_bytes_;
  std::size_t span_ = 0;        // current span
  std::uint64_t position_ = 0;  // next byte of it to cut
  std::uint32_t item_ = 0;      // first item of it that ends behind position_
  std::uint32_t reserved_ = 0;  // items below this index have memory
};

}  // namespace streamer
