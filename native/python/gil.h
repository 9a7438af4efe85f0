// Releases or takes the interpreter's lock (GIL) for a scope.
//
// Before Python 3.14, a thread that takes the GIL while the interpreter ends is ended by unwinding
// its stack. If the unwinding reaches a destructor, it calls std::terminate, so a successful job
// would abort at its exit. Here such a thread waits for the end of the process instead, as every
// thread does from Python 3.14 on.
#pragma once

#include <Python.h>
#include <unistd.h>

namespace streamer {

template <typename Take>
auto take_gil_or_wait(Take take) {
  try {
    return take();
  } catch (...) {  // the unwinding, because C code throws nothing; leaving this handler would abort
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
