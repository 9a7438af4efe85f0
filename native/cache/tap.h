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
  // Call before the first block. With `may_wait`, readers of this source wait for the disk, and no
  // block of it is skipped.
  void add(std::uint32_t source, std::shared_ptr<CacheEntry> entry, bool may_wait);
  bool is_empty() const { return places_.empty(); }

  void offer(const Block& block, bool is_confirmed) noexcept override;
  void confirm(std::uint32_t source, std::uint64_t begin, std::uint64_t end,
               std::uint64_t crc) noexcept override;
  void forget(std::uint32_t source, std::uint64_t begin, std::uint64_t end) noexcept override;

 private:
  struct Place {
    std::shared_ptr<CacheEntry> entry;  // null if not cached
    bool may_wait = false;
  };
  Place place_of(std::uint32_t source) const;

  std::vector<Place> places_;  // by source
};

}  // namespace streamer
