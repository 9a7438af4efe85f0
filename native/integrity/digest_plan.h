// Which items get a digest, and which digest is expected, as values.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "integrity/crc.h"

namespace streamer {

struct ItemDigest {
  std::optional<Crc> code;                // nothing: no digest for this item
  std::optional<std::uint64_t> expected;  // nothing: the digest is only reported
  std::uint32_t source = 0;
};

struct DigestPlan {
  std::vector<ItemDigest> items;  // by item; empty: no digests at all
  // By source: ascending offsets in the object at which one digest ends and the next begins, like
  // the parts of a multipart upload.
  std::vector<std::vector<std::uint64_t>> cuts;
};

}  // namespace streamer
