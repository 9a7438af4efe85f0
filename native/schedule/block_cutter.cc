#include "schedule/block_cutter.h"

#include <algorithm>
#include <utility>

namespace streamer {

BlockCutter::BlockCutter(std::vector<Item>& items, std::vector<Span> spans, BlockBytes block_bytes)
    : items_(items), spans_(std::move(spans)), block_bytes_(std::move(block_bytes)) {
  if (!spans_.empty()) {
    position_ = spans_[0].begin;
    item_ = reserved_ = spans_[0].first_item;
  }
}

const Item* BlockCutter::unreserved() const {
  if (is_exhausted()) return nullptr;
  const Span& span = spans_[span_];
  const bool is_reached = reserved_ < span.first_item + span.item_count &&
                          items_[reserved_].begin < wanted_end(block_bytes_(span.source));
  return is_reached ? &items_[reserved_] : nullptr;
}

std::uint64_t BlockCutter::wanted_end(std::uint64_t block_bytes) const {
  return std::min(spans_[span_].end, (position_ / block_bytes + 1) * block_bytes);
}

std::optional<Block> BlockCutter::next(const Reserve& reserve, bool accept_short) {
  if (is_exhausted()) return std::nullopt;
  const Span& span = spans_[span_];
  const std::uint64_t block_bytes = block_bytes_(span.source);
  const std::uint64_t wanted = wanted_end(block_bytes);
  const std::uint64_t end = reserve_up_to(span, wanted, reserve);
  if (end <= position_) return std::nullopt;
  if (end < wanted && !accept_short && end - position_ < block_bytes / 4) return std::nullopt;
  return cut(span, end);
}

// Returns the offset up to which the block can reach: `end`, or the end of the last item with
// memory.
std::uint64_t BlockCutter::reserve_up_to(const Span& span, std::uint64_t end,
                                         const Reserve& reserve) {
  const std::uint32_t last = span.first_item + span.item_count;
  while (reserved_ < last && items_[reserved_].begin < end) {
    if (!reserve(reserved_)) break;
    ++reserved_;
  }
  const bool has_all = reserved_ == last || items_[reserved_].begin >= end;
  if (has_all) return end;
  return reserved_ == span.first_item ? position_ : std::min(end, items_[reserved_ - 1].end);
}

std::optional<Block> BlockCutter::cut(const Span& span, std::uint64_t end) {
  // Built in place and never moved, because the scheduler's lock is held.
  std::optional<Block> cut(std::in_place);
  Block& block = *cut;
  block.source = span.source;
  block.begin = position_;
  block.end = end;
  const std::int32_t device = span.item_count > 0 ? items_[span.first_item].device : kHost;
  block.device = is_on_device(device) ? device : kHost;
  std::uint64_t position = position_;
  for (std::uint32_t i = item_; position < end; ++i) {
    const bool is_item = i < span.first_item + span.item_count;
    const std::uint64_t gap_end = is_item ? std::min(end, items_[i].begin) : end;
    if (gap_end > position) {
      block.destinations.push_back({nullptr, gap_end - position, Segment::kNoItem});
      position = gap_end;
    }
    if (!is_item) break;
    const Item& item = items_[i];
    const std::uint64_t item_end = std::min(end, item.end);
    if (item_end > position) {
      block.destinations.push_back({item.target + (position - item.begin), item_end - position, i});
      position = item_end;
    }
  }
  advance(span, end);
  return cut;
}

void BlockCutter::advance(const Span& span, std::uint64_t end) {
  position_ = end;
  const std::uint32_t last = span.first_item + span.item_count;
  while (item_ < last && items_[item_].end <= end) ++item_;
  // A block never starts with bytes that belong to no item.
  if (item_ < last && items_[item_].begin > position_) position_ = items_[item_].begin;
  if (item_ < last && position_ < span.end) return;
  ++span_;
  if (is_exhausted()) return;
  position_ = spans_[span_].begin;
  item_ = reserved_ = spans_[span_].first_item;
}

}  // namespace streamer
