#include "cuda/fake_driver.h"

#include <dlfcn.h>
#include <doctest/doctest.h>

#include <string>

#include "cuda/runtime.h"

namespace streamer {

const char* FakeDriver::path() { return STREAMER_FAKE_CUDA; }

FakeDriver::FakeDriver() : library_(dlopen(path(), RTLD_NOW | RTLD_LOCAL)) {
  REQUIRE(library_ != nullptr);
  const auto find = [this]<typename Function>(const char* name, Function*& function) {
    function = reinterpret_cast<Function*>(dlsym(library_, name));
    const bool is_found = function != nullptr;
    REQUIRE(is_found);
  };
  find("fake_cuda_reset", reset);
  find("fake_cuda_set_devices", set_devices);
  find("fake_cuda_set_copy_delay_us", set_copy_delay_us);
  find("fake_cuda_set_start_delay_us", set_start_delay_us);
  find("fake_cuda_fail", fail);
  find("fake_cuda_lose_device", lose_device);
  find("fake_cuda_hold_copies", hold_copies);
  find("fake_cuda_place", place);
  find("fake_cuda_enqueue_fill", enqueue_fill);
  find("fake_cuda_calls", calls);
  find("fake_cuda_violations", violations);
  find("fake_cuda_capture_mode", capture_mode);
  find("fake_cuda_pinned_bytes", pinned_bytes);
  find("fake_cuda_forget_pinned", forget_pinned);
  find("fake_cuda_live_streams", live_streams);
  find("fake_cuda_live_events", live_events);
  find("fake_cuda_live_contexts", live_contexts);
  reset();
  CudaRuntime::instance().use_library_for_tests(path());
}

FakeDriver::~FakeDriver() {
  CudaRuntime::instance().use_library_for_tests("");
  CHECK(pinned_bytes() == 0);
  CHECK(live_streams() == 0);
  CHECK(live_events() == 0);
  CHECK(live_contexts() == 0);
  CHECK(violations() == 0);
  reset();
  // The library is never closed: a thread that just ended may still run its last instructions.
}

}  // namespace streamer
