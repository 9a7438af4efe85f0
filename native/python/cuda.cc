// What the process holds of CUDA devices, for core/ alone.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>

#include "cuda/runtime.h"
#include "python/gil.h"
#include "python/registers.h"

namespace py = pybind11;

namespace streamer {
namespace {

// Opens the device; the failure, or nothing.
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

// Sets this thread's mode and returns the one it had; nothing if no driver is loaded.
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
  } catch (const DeviceFailure&) {  // a forked child has none of its own
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

// Why not; empty where it can be used.
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
             "Open a CUDA device; what its driver answers when it cannot be had, or None.");
  module.def("cuda_free_bytes", &free_bytes, py::arg("device"),
             "Free memory of a CUDA device, or None where it does not tell.");
  module.attr("CAPTURE_MODE_RELAXED") = kCaptureModeRelaxed;
  module.def("cuda_exchange_capture_mode", &exchange_capture_mode, py::arg("mode"),
             "Set how this thread's driver calls bear on captures of CUDA graphs; returns the "
             "thread's mode before, or None if no driver is in use.");
  module.def("cuda_release_pinned", &release_pinned, "Unpin what no load uses; returns the bytes.");
  module.def("cuda_pinned_stats", &pinned_stats, "Host memory now pinned for copies to devices.");
  module.def("cuda_gpudirect_problem", &gpudirect_problem,
             "Why GPUDirect Storage cannot be used here; \"\" where it can.");
}

}  // namespace streamer
