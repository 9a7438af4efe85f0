// Long calls of the consumer's thread, which Ctrl-C must end.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>

#include "python/gil.h"

namespace streamer {

// Calls `call(is_interrupted)` without the GIL. It is to ask is_interrupted() now and then, which
// lets signal handlers run, and to return once that is true; what a handler raised is raised then.
template <typename Call>
auto call_interruptibly(Call call) {
  std::atomic<bool> has_raised = false;
  const auto is_interrupted = [&has_raised] {
    const GilHeld locked;
    if (PyErr_CheckSignals() != 0) has_raised = true;
    return has_raised.load();
  };
  auto result = [&] {
    const GilReleased unlocked;
    return call(is_interrupted);
  }();
  if (has_raised) throw pybind11::error_already_set();
  return result;
}

}  // namespace streamer
