#include "cache/tap.h"

#include <exception>
#include <utility>

#include "cache/writer.h"

namespace streamer {

void CacheTap::add(std::uint32_t source, std::shared_ptr<CacheEntry> entry, bool may_wait) {
  if (entries_.size() <= source) entries_.resize(source + std::size_t{1});
  entries_[source] = std::move(entry);
  may_wait_ = may_wait_ || may_wait;
}

std::shared_ptr<CacheEntry> CacheTap::entry_of(std::uint32_t source) const {
  return source < entries_.size() ? entries_[source] : nullptr;
}

void CacheTap::offer(const Block& block, bool is_confirmed) noexcept {
  const auto entry = entry_of(block.source);
  if (!entry || !entry->is_writable()) return;
  try {
    if (CacheWriter::of_process().offer(entry, block, may_wait_, is_confirmed)) return;
  } catch (const std::exception&) {  // the next load reads the block from the storage again
  }
  entry->note_skipped(block.wanted_bytes());
}

void CacheTap::confirm(std::uint32_t source, std::uint64_t begin, std::uint64_t end,
                       std::uint64_t crc) noexcept {
  const auto entry = entry_of(source);
  if (!entry) return;
  try {
    CacheWriter::of_process().confirm(entry, begin, end, crc);
  } catch (const std::exception&) {  // the next load reads the range from the storage again
  }
}

void CacheTap::forget(std::uint32_t source, std::uint64_t begin, std::uint64_t end) noexcept {
  const auto entry = entry_of(source);
  if (!entry) return;
  try {
    CacheWriter::of_process().forget(entry, begin, end);
  } catch (const std::exception&) {  // the next load finds the damage again
  }
}

}  // namespace streamer
