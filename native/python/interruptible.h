// Runs long calls on the consumer's thread so that Ctrl-C ends them.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>

#include "python/gil.h"

namespace streamer {

// Calls `call(is_interrupted)` without the GIL. `call` must poll is_interrupted(), which runs
// pending signal handlers, and must return when it is true. Then the exception of the handler is
// raised.
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
