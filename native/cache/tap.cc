#include "cache/tap.h"

#include <exception>
#include <utility>

#include "cache/writer.h"

namespace streamer {

void CacheTap::add(std::uint32_t source, std::shared_ptr<CacheEntry> entry, bool may_wait) {
  if (places_.size() <= source) places_.resize(source + std::size_t{1});
  places_[source] = {std::move(entry), may_wait};
}

CacheTap::Place CacheTap::place_of(std::uint32_t source) const {
  return source < places_.size() ? places_[source] : Place{};
}

void CacheTap::offer(const Block& block, bool is_confirmed) noexcept {
  const auto [entry, may_wait] = place_of(block.source);
  if (!entry || !entry->is_writable()) return;
  try {
    if (CacheWriter::of_process().offer(entry, block, may_wait, is_confirmed)) return;
  } catch (const std::exception&) {  // the next load reads the block from the storage again
  }
  entry->note_skipped(block.wanted_bytes());
}

void CacheTap::confirm(std::uint32_t source, std::uint64_t begin, std::uint64_t end,
                       std::uint64_t crc) noexcept {
  const auto entry = place_of(source).entry;
  if (!entry) return;
  try {
    CacheWriter::of_process().confirm(entry, begin, end, crc);
  } catch (const std::exception&) {  // the next load reads the range from the storage again
  }
}

void CacheTap::forget(std::uint32_t source, std::uint64_t begin, std::uint64_t end) noexcept {
  const auto entry = place_of(source).entry;
  if (!entry) return;
  try {
    CacheWriter::of_process().forget(entry, begin, end);
  } catch (const std::exception&) {  // the next load finds the damage again
  }
}

}  // namespace streamer
