// While this object exists, calls of the driver on this thread do not disturb captures of CUDA
// graphs.
//
// A capture in the default ("global") mode, as torch begins it, forbids all threads the calls that
// might be unsafe in a capture, such as querying an event or locking memory. One such call
// invalidates the capture. The engine has its own streams, events and pinned memory, so none of its
// calls belongs to a capture. This class tells the driver so for the calling thread
// (CU_STREAM_CAPTURE_MODE_RELAXED) and restores the thread's mode at the end.
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
  int mode_ = kCaptureModeRelaxed;  // after the exchange: the thread's previous mode
  // A refusal is not reported here: the driver calls that follow would fail too, and their results
  // are checked.
  const bool is_relaxed_;
};

}  // namespace streamer
