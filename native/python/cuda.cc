// The CUDA devices of this process, for core/ only.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>

#include "cuda/runtime.h"
#include "python/gil.h"
#include "python/registers.h"

namespace py = pybind11;

namespace streamer {
namespace {

// Opens the device. Returns the failure, if any.
std::optional<ReadError> open_device(int device) {
  const GilReleased unlocked;
  try {
    CudaRuntime::instance().ring(device);
    return std::nullopt;
  } catch (const DeviceFailure& failure) {
    return failure.error();
  }
}

std::optional<std::uint64_t> free_bytes(int device) {
  try {
    return CudaRuntime::instance().ring(device)->device()->memory().free_bytes;
  } catch (const DeviceFailure&) {
    return std::nullopt;
  }
}

// Sets this thread's mode and returns the previous mode; nothing if no driver is loaded.
std::optional<int> exchange_capture_mode(int mode) {
  const auto driver = CudaRuntime::instance().driver();
  if (!driver || driver->is_forked()) return std::nullopt;
  if (driver->exchange_capture_mode(&mode) != kCudaSuccess) return std::nullopt;
  return mode;
}

std::uint64_t release_pinned() {
  const GilReleased unlocked;
  try {
    return CudaRuntime::instance().release_free();
  } catch (const DeviceFailure&) {  // a forked child has no pinned memory
    return 0;
  }
}

py::dict pinned_stats() {
  const RingStats stats = CudaRuntime::instance().stats();
  py::dict result;
  result["pinned_bytes"] = stats.pinned_bytes;
  result["free_bytes"] = stats.free_bytes;
  result["abandoned_bytes"] = stats.abandoned_bytes;
  return result;
}

// Returns why GPUDirect Storage cannot be used; empty if it can.
std::string gpudirect_problem() {
  try {
    return CudaRuntime::instance().gpudirect(true).reason;
  } catch (const DeviceFailure& failure) {
    return failure.error().detail;
  }
}

}  // namespace

void register_cuda(py::module_& module) {
  module.def("cuda_open", &open_device, py::arg("device"),
             "Open a CUDA device. Return the driver's error if that fails, else None.");
  module.def("cuda_free_bytes", &free_bytes, py::arg("device"),
             "Return the bytes of free memory of a CUDA device, or None if they are not known.");
  module.attr("CAPTURE_MODE_RELAXED") = kCaptureModeRelaxed;
  module.def("cuda_exchange_capture_mode", &exchange_capture_mode, py::arg("mode"),
             "Set how this thread's driver calls affect captures of CUDA graphs. Return the "
             "thread's previous mode, or None if no driver is loaded.");
  module.def("cuda_release_pinned", &release_pinned,
             "Unpin the memory that no load uses. Return its bytes.");
  module.def("cuda_pinned_stats", &pinned_stats,
             "Return the bytes of host memory that are pinned for copies to devices.");
  module.def("cuda_gpudirect_problem", &gpudirect_problem,
             "Return why GPUDirect Storage cannot be used here; \"\" if it can.");
}

}  // namespace streamer
