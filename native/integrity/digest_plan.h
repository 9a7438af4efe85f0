// The items that get a digest, and the digests that are expected, as values.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "integrity/crc.h"
#include "integrity/piece_hash.h"

namespace streamer {

struct ItemDigest {
  std::optional<Crc> code;                // empty: no checksum for this item
  std::optional<std::uint64_t> expected;  // empty: the checksum is only reported
  std::uint32_t source = 0;
  bool is_hashed = false;
  std::optional<Hash> expected_hash{};  // empty: the hash is only reported
};

struct DigestPlan {
  std::vector<ItemDigest> items;  // one for each item, or none if there are no digests at all
  // For each source, ascending offsets in the object at which one digest ends and the next begins,
  // like the parts of a multipart upload.
  std::vector<std::vector<std::uint64_t>> cuts;

  // Returns the size of the pieces that blocks must hold whole; 1 if none is hashed.
  std::uint64_t piece_bytes() const {
    for (const ItemDigest& item : items) {
      if (item.is_hashed) return kHashPieceBytes;
    }
    return 1;
  }
};

}  // namespace streamer
