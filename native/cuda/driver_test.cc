// These tests use the fake driver; they prove nothing about a real one.
#include "cuda/driver.h"

#include <doctest/doctest.h>

#include <thread>

#include "base/forked_child_fixture.h"
#include "cuda/fake_driver.h"
#include "cuda/runtime.h"

namespace streamer {
namespace {

ReadError failure_of(int device) {
  try {
    CudaRuntime::instance().ring(device);
  } catch (const DeviceFailure& failure) {
    return failure.error();
  }
  FAIL("the device was opened");
  return {};
}

TEST_CASE("without a driver there is an error, not a crash") {
  try {
    load_cuda_driver("libcuda-that-nobody-has.so.1");
    FAIL("it was loaded");
  } catch (const DeviceFailure& failure) {
    CHECK(failure.error().code == ErrorCode::kDevice);
    CHECK(failure.error().detail.find("there is no CUDA driver here") == 0);
  }
}

TEST_CASE("a library that is no CUDA driver is refused, with the name of a missing function") {
  CHECK_THROWS_WITH_AS(load_cuda_driver("libc.so.6"),
                       "the CUDA driver is too old: it has no cuInit", DeviceFailure);
}

TEST_CASE("the error for a missing device tells how many devices there are") {
  const FakeDriver fake;
  CHECK(failure_of(7).storage_code == "CUDA_ERROR_INVALID_DEVICE");
  CHECK(failure_of(7).detail.find("leave 2 devices") != std::string::npos);
  CHECK(failure_of(-2).storage_code == "CUDA_ERROR_INVALID_DEVICE");
}

TEST_CASE("an empty CUDA_VISIBLE_DEVICES is an error of the driver") {
  const FakeDriver fake;
  fake.set_devices(0);
  CHECK(failure_of(0).storage_code == "CUDA_ERROR_NO_DEVICE");
}

TEST_CASE("every failed call of the driver is reported with the driver's name of the error") {
  for (const char* function :
       {"cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDevicePrimaryCtxRetain"}) {
    CAPTURE(function);
    const FakeDriver fake;
    fake.fail(function, 46, 0);
    CHECK(failure_of(0).storage_code == "CUDA_ERROR_DEVICE_UNAVAILABLE");
  }
}

TEST_CASE("an error code that the driver does not know is reported as a number") {
  const FakeDriver fake;
  fake.fail("cuInit", 4711, 0);
  CHECK(failure_of(0).storage_code == "CUDA error 4711");
  CHECK(failure_of(0).detail == "starting the CUDA driver failed: an unknown error");
}

TEST_CASE("a device can be opened after an earlier failure") {
  const FakeDriver fake;
  fake.fail("cuDevicePrimaryCtxRetain", 2, 0);
  CHECK(failure_of(0).storage_code == "CUDA_ERROR_OUT_OF_MEMORY");
  fake.fail("cuDevicePrimaryCtxRetain", 0, 0);
  CHECK(CudaRuntime::instance().ring(0)->device()->memory().free_bytes == 1 << 30);
}

int device_refused_in_child() {
  try {
    CudaRuntime::instance().ring(0);
  } catch (const DeviceFailure& failure) {
    return failure.error().detail.starts_with("CUDA was used before this process was forked") ? 0
                                                                                              : 2;
  }
  return 1;
}

TEST_CASE("a child forked while a device is opened is refused, and does not hang (regression)") {
  const FakeDriver fake;
  fake.set_start_delay_us(300'000);
  std::thread opener([] { CudaRuntime::instance().ring(0); });
  while (fake.calls("cuInit") == 0) std::this_thread::yield();
  CHECK(exit_status_of_child(device_refused_in_child) == 0);
  opener.join();
}

TEST_CASE("the grandchild of a process that used CUDA is refused too") {
  const FakeDriver fake;
  CudaRuntime::instance().ring(0);
  CHECK(exit_status_of_child([] { return exit_status_of_child(device_refused_in_child); }) == 0);
}

TEST_CASE("a child of a process that failed to use CUDA may try CUDA itself") {
  const FakeDriver fake;
  fake.fail("cuInit", 100, 0);
  CHECK(failure_of(0).storage_code == "CUDA_ERROR_NO_DEVICE");
  CHECK(exit_status_of_child([] {
          CudaRuntime::instance().use_library_for_tests("libcuda-that-nobody-has.so.1");
          return failure_of(0).detail.starts_with("there is no CUDA driver here") ? 0 : 1;
        }) == 0);
}

TEST_CASE("a device has its PCI address as the system writes it") {
  const FakeDriver fake;
  CHECK(CudaRuntime::instance().ring(1)->device()->pci_address() == "fake:01:00.0");
}

TEST_CASE("a driver that does not report the PCI address of a device can still open the device") {
  const FakeDriver fake;
  fake.fail("cuDeviceGetPCIBusId", kCudaNotSupported, 0);
  const auto refused = CudaRuntime::instance().ring(0)->device();
  CHECK(refused->pci_address().empty());
  CHECK(!refused->numa_node());
  const auto old = std::const_pointer_cast<CudaDriver>(load_cuda_driver(FakeDriver::path()));
  old->device_pci_id = nullptr;
  CHECK(CudaDevice(old, 0).pci_address().empty());
}

TEST_CASE("the driver detects a target on another device") {
  const FakeDriver fake;
  int there = 0;
  fake.place(&there, sizeof there, 1);
  const auto ring = CudaRuntime::instance().ring(0);
  auto* const address = reinterpret_cast<std::byte*>(&there);
  CHECK_THROWS_AS(ring->device()->check_addresses({address}), DeviceFailure);
  CHECK_NOTHROW(CudaRuntime::instance().ring(1)->device()->check_addresses({address}));
  // If the driver does not know the address, the copy itself would fail.
  fake.fail("cuPointerGetAttribute", 1, 0);
  CHECK_NOTHROW(ring->device()->check_addresses({address}));
}

}  // namespace
}  // namespace streamer
