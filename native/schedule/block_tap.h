// An observer of the blocks that were read. It sees them before their items are delivered.
#pragma once

#include <cstdint>

#include "plan/plan.h"

namespace streamer {

class BlockTap {
 public:
  virtual ~BlockTap() = default;

  // Receives a block whose bytes are all in the memory of this machine. Called on the thread of its
  // reader. Bytes with `is_confirmed` false count only after confirm().
  virtual void offer(const Block& block, bool is_confirmed) noexcept = 0;
  // Reports that the bytes of an item are right, and their CRC32C. Called under the scheduler's
  // lock, as forget().
  virtual void confirm(std::uint32_t source, std::uint64_t begin, std::uint64_t end,
                       std::uint64_t crc) noexcept = 0;
  // Reports that bytes turned out to be wrong. Called under the scheduler's lock, so it must not
  // wait.
  virtual void forget(std::uint32_t source, std::uint64_t begin, std::uint64_t end) noexcept = 0;
};

}  // namespace streamer
