// The interpreter's lock: given up for a while, or taken.
//
// Until Python 3.14, a thread that takes it while the interpreter ends is ended by unwinding its
// stack, and in a destructor that ends the process (std::terminate): a job that loaded all it
// wanted would abort at its exit. Here such a thread waits for the end of the process, as all do
// from Python 3.14 on.
#pragma once

#include <Python.h>
#include <unistd.h>

namespace streamer {

template <typename Take>
auto take_gil_or_wait(Take take) {
  try {
    return take();
  } catch (...) {  // the unwinding: of C there are no exceptions; to leave this handler would abort
    for (;;) pause();
  }
}

class GilReleased {
 public:
  GilReleased() : state_(PyEval_SaveThread()) {}
  ~GilReleased() {
    take_gil_or_wait([this] { PyEval_RestoreThread(state_); });
  }
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

 private:
  PyThreadState* state_;
};

class GilHeld {
 public:
  GilHeld() : state_(take_gil_or_wait(&PyGILState_Ensure)) {}
  ~GilHeld() { PyGILState_Release(state_); }
  GilHeld(const GilHeld&) = delete;
  GilHeld& operator=(const GilHeld&) = delete;

 private:
  PyGILState_STATE state_;
};

}  // namespace streamer
