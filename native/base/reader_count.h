// How many threads read one lane. If descriptors run short, some threads end and leave their work
// to the others; the last thread stays.
//
// Thread-safe.
#pragma once

#include <atomic>

namespace streamer {

class ReaderCount {
 public:
  void start(unsigned count) { left_ = count; }
  void remove(unsigned never_started) { left_ -= never_started; }

  // Returns whether other threads remain. If true, the caller no longer counts and must end.
  bool leave_to_others() {
    unsigned left = left_;
    while (left > 1) {
      if (left_.compare_exchange_weak(left, left - 1)) return true;
    }
    return false;
  }

 private:
  std::atomic<unsigned> left_{0};
};

}  // namespace streamer
