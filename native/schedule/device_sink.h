// Where blocks go that are complete in pinned memory and have a device as their destination.
#pragma once

#include "plan/lane.h"
#include "plan/plan.h"

namespace streamer {

class DeviceSink {
 public:
  virtual ~DeviceSink() = default;

  // Takes the block to its device and then tells the scheduler that it landed, or that it failed.
  // Called under the scheduler's lock: must not wait, nor call the scheduler.
  virtual void submit(Lane lane, Block block) = 0;
};

}  // namespace streamer
