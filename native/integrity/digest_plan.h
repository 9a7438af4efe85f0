// The items that get a digest, and the digests that are expected, as values.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "integrity/crc.h"

namespace streamer {

struct ItemDigest {
  std::optional<Crc> code;                // empty: no digest for this item
  std::optional<std::uint64_t> expected;  // empty: the digest is only reported
  std::uint32_t source = 0;
};

struct DigestPlan {
  std::vector<ItemDigest> items;  // one for each item, or none if there are no digests at all
  // For each source, ascending offsets in the object at which one digest ends and the next begins,
  // like the parts of a multipart upload.
  std::vector<std::vector<std::uint64_t>> cuts;
};

}  // namespace streamer
