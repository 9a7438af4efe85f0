// Cuts spans into blocks of a given size, in order, as far as memory allows.
//
// A block ends at a multiple of the block size within the object, so that it matches the parts of a
// multipart upload and the pages of a file. It also ends at the end of its span, or, if memory is
// short, at the end of the last item with memory. One block may hold many small items, and one
// large item takes many blocks.
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
  // Makes sure that an item has memory, and sets `Item::target`. Returns false if there is no
  // memory for the item now. Called in item order, and for each item until it succeeds.
  using Reserve = std::function<bool(std::uint32_t item)>;

  // Returns the block size for an object. The size may change between two blocks.
  using BlockBytes = std::function<std::uint64_t(std::uint32_t source)>;

  // `items` must outlive the cutter; `spans` are the spans of one lane, in order.
  BlockCutter(std::vector<Item>& items, std::vector<Span> spans, BlockBytes block_bytes);

  bool is_exhausted() const { return span_ == spans_.size(); }
  // The source of the next block. Only valid if the cutter is not exhausted.
  std::uint32_t source() const { return spans_[span_].source; }
  std::uint32_t item() const { return item_; }
  // Returns the first item of the next block that has no memory yet; null if there is none.
  const Item* unreserved() const;
  std::int32_t device() const { return items_[spans_[span_].first_item].device; }

  // Returns the next block; nothing if the cutter is exhausted or memory is short. If memory cuts a
  // block to less than a quarter of its size and `accept_short` is false, the block is held back,
  // because it will be worth a request when there is more memory.
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
  std::uint64_t position_ = 0;  // next byte of the span to cut
  std::uint32_t item_ = 0;      // first item of the span that ends after position_
  std::uint32_t reserved_ = 0;  // items below this index have memory
};

}  // namespace streamer
