// While it lives, calls that this thread makes of the driver leave captures of CUDA graphs alone.
//
// A capture that any thread began in the default ("global") mode, as torch's are, forbids all
// threads what might be unsafe in one, such as asking for an event or locking memory, and is
// invalid once somebody did. Nothing the engine does is meant for a capture: its streams, events
// and pinned memory are its own. So it says of its calls, thread by thread, that they are none of
// its concern (CU_STREAM_CAPTURE_MODE_RELAXED); afterwards the thread's mode is what it was.
#pragma once

#include "cuda/driver.h"

namespace streamer {

class RelaxedCapture {
 public:
  explicit RelaxedCapture(const CudaDriver& driver)
      : driver_(driver), is_relaxed_(driver.exchange_capture_mode(&mode_) == kCudaSuccess) {}
  ~RelaxedCapture() {
    if (is_relaxed_) driver_.exchange_capture_mode(&mode_);
  }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const CudaDriver& driver_;
  int mode_ = kCaptureModeRelaxed;  // and the thread's own while this lives
  // Where it is refused nothing is said: the driver answers what follows, and that is checked.
  const bool is_relaxed_;
};

}  // namespace streamer
