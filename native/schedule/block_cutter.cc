#include "schedule/block_cutter.h"

#include <algorithm>
#include <utility>

namespace streamer {
namespace {

// Appends the destinations of the bytes from `position` to `end`, which lie in the item's range.
void append(std::vector<Segment>& destinations, const Item& item, std::uint32_t index,
            std::uint64_t position, std::uint64_t end) {
  if (item.run == 0) {
    destinations.push_back({item.target + (position - item.begin), end - position, index});
    return;
  }
  while (position < end) {
    const std::uint64_t number = (position - item.begin) / item.stride;
    const std::uint64_t in_run = (position - item.begin) % item.stride;
    const bool is_wanted = in_run < item.run;
    const std::uint64_t size =
        std::min(end - position, (is_wanted ? item.run : item.stride) - in_run);
    destinations.push_back({is_wanted ? item.target + number * item.run + in_run : nullptr, size,
                            is_wanted ? index : Segment::kNoItem});
    position += size;
  }
}

// Returns the offset of the item's first byte that is not before `position`.
std::uint64_t next_wanted(const Item& item, std::uint64_t position) {
  if (position <= item.begin) return item.begin;
  const std::uint64_t in_run = item.run == 0 ? 0 : (position - item.begin) % item.stride;
  return in_run < item.run || item.run == 0 ? position : position + item.stride - in_run;
}

}  // namespace

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
      append(block.destinations, item, i, position, item_end);
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
  if (item_ < last) position_ = next_wanted(items_[item_], position_);
  if (item_ < last && position_ < span.end) return;
  ++span_;
  if (is_exhausted()) return;
  position_ = spans_[span_].begin;
  item_ = reserved_ = spans_[span_].first_item;
}

}  // namespace streamer
