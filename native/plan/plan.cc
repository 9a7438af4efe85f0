#include "plan/plan.h"

#include <stdexcept>
#include <string>

namespace streamer {
namespace {

[[noreturn]] void refuse(const std::string& what, std::size_t index) {
  throw std::invalid_argument("plan: " + what + " " + std::to_string(index));
}

void check_seals(const SealPlan& seals, const std::vector<Item>& items) {
  if (!seals.items.empty() && seals.items.size() != items.size())
    refuse("the number of items is not the number of sealed items,", seals.items.size());
  for (std::size_t i = 0; i < seals.items.size(); ++i) {
    const SealedItem& sealed = seals.items[i];
    if (sealed.file == SealedItem::kPlain) continue;
    if (sealed.file >= seals.files.size()) refuse("unknown encrypted file of item", i);
    const SealedFile& file = seals.files[sealed.file];
    const std::uint64_t tags = file.tags.size() / kTagBytes;
    const std::uint64_t pieces = file.cipher->pieces_in(items[i].begin, items[i].end);
    if (sealed.first_piece > tags || pieces > tags - sealed.first_piece)
      refuse("missing tags of item", i);
  }
}

// An item with runs has no digest: bytes of others lie between its own.
void check_runs(const Plan& plan) {
  const bool is_compared =
      !plan.digests.items.empty() || !plan.cached.empty() || !plan.seals.items.empty();
  for (std::size_t i = 0; i < plan.items.size(); ++i) {
    const Item& item = plan.items[i];
    if (item.run == 0) continue;
    const bool has_whole_runs = item.stride > item.run && item.end - item.begin >= item.run &&
                                (item.end - item.begin) % item.stride == item.run;
    if (is_compared || !has_whole_runs) refuse("misplaced runs of item", i);
  }
}

void cover_held_back(const Plan& plan, std::uint32_t source_count, std::vector<bool>& is_covered) {
  for (const std::uint32_t item : plan.held_back) {
    const bool is_free = item < plan.items.size() && !is_covered[item];
    if (!is_free || plan.items[item].source >= source_count || plan.items[item].size() == 0)
      refuse("misplaced held-back item", item);
    is_covered[item] = true;
  }
  for (const std::uint32_t source : plan.peers) {
    if (source >= source_count) refuse("unknown peer", source);
  }
}

}  // namespace

void check_plan(const Plan& plan, std::uint32_t source_count) {
  check_runs(plan);
  std::vector<bool> is_covered(plan.items.size(), false);
  for (std::size_t s = 0; s < plan.spans.size(); ++s) {
    const Span& span = plan.spans[s];
    if (span.source >= source_count) refuse("unknown source in span", s);
    if (span.begin >= span.end) refuse("empty span", s);
    if (std::uint64_t{span.first_item} + span.item_count > plan.items.size()) {
      refuse("span beyond the items", s);
    }
    std::uint64_t position = span.begin;
    for (std::uint32_t i = span.first_item; i < span.first_item + span.item_count; ++i) {
      const Item& item = plan.items[i];
      if (item.source != span.source || is_covered[i]) refuse("misplaced item", i);
      if (item.device != plan.items[span.first_item].device) refuse("another device at item", i);
      if (item.begin < position || item.end < item.begin || item.end > span.end) {
        refuse("overlapping or unordered item", i);
      }
      position = item.end;
      is_covered[i] = true;
    }
  }
  cover_held_back(plan, source_count, is_covered);
  for (std::size_t i = 0; i < plan.items.size(); ++i) {
    if (!is_covered[i] && plan.items[i].size() != 0) refuse("no span reads item", i);
  }
  const std::size_t digests = plan.digests.items.size();
  if (digests != 0 && digests != plan.items.size())
    refuse("the number of items is not the number of digests,", digests);
  for (const CachedItem& cached : plan.cached) {
    const bool exists = cached.item < plan.items.size() && cached.origin < source_count;
    if (!exists || plan.items[cached.item].size() == 0)
      refuse("misplaced cached item", cached.item);
  }
  check_seals(plan.seals, plan.items);
}

std::vector<std::uint64_t> wanted_bytes(const Plan& plan, std::uint32_t source_count) {
  std::vector<std::uint64_t> bytes(source_count);
  for (const Item& item : plan.items) {
    if (item.size() != 0) bytes[item.source] += item.size();  // an empty item may name no source
  }
  return bytes;
}

}  // namespace streamer
