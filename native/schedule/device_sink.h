// Takes blocks that are complete in pinned memory and have a device as their destination.
#pragma once

#include "plan/lane.h"
#include "plan/plan.h"

namespace streamer {

class DeviceSink {
 public:
  virtual ~DeviceSink() = default;

  // Copies the block to its device. Then tells the scheduler that the block landed or failed.
  // Called under the scheduler's lock, so it must neither wait nor call the scheduler.
  virtual void submit(Lane lane, Block block) = 0;
};

}  // namespace streamer
