// Writes the blocks of one load to the cache, for the objects that the caller wants cached.
//
// Thread-safe after the last add().
#pragma once

#include <memory>
#include <vector>

#include "cache/entry.h"
#include "schedule/block_tap.h"

namespace streamer {

class CacheTap : public BlockTap {
 public:
  // Call before the first block. With `may_wait`, readers wait for the disk, and no block is
  // skipped.
  void add(std::uint32_t source, std::shared_ptr<CacheEntry> entry, bool may_wait);
  bool is_empty() const { return entries_.empty(); }

  void offer(const Block& block, bool is_confirmed) noexcept override;
  void confirm(std::uint32_t source, std::uint64_t begin, std::uint64_t end,
               std::uint64_t crc) noexcept override;
  void forget(std::uint32_t source, std::uint64_t begin, std::uint64_t end) noexcept override;

 private:
  std::shared_ptr<CacheEntry> entry_of(std::uint32_t source) const;

  std::vector<std::shared_ptr<CacheEntry>> entries_;  // by source; null if not cached
  bool may_wait_ = false;
};

}  // namespace streamer
