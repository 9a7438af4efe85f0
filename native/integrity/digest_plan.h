// Which items are digested, and what is expected of them, as values.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "integrity/crc.h"

namespace streamer {

struct ItemDigest {
  std::optional<Crc> code;                // nothing: this item is not digested
  std::optional<std::uint64_t> expected;  // nothing: the digest is only told
  std::uint32_t source = 0;
};

struct DigestPlan {
  std::vector<ItemDigest> items;  // by item, or empty: nothing is computed
  // By source: ascending offsets in the object at which digests end and begin, as the parts of a
  // multipart upload do.
  std::vector<std::vector<std::uint64_t>> cuts;
};

}  // namespace streamer
