// Who is shown the blocks that were read, before their items are handed out.
#pragma once

#include <cstdint>

#include "plan/plan.h"

namespace streamer {

class BlockTap {
 public:
  virtual ~BlockTap() = default;

  // A block whose bytes are all in place, in memory of this machine; on the thread of its reader.
  virtual void offer(const Block& block) noexcept = 0;
  // Bytes that turned out to be wrong. Called under the scheduler's lock: must not wait.
  virtual void forget(std::uint32_t source, std::uint64_t begin, std::uint64_t end) noexcept = 0;
};

}  // namespace streamer
