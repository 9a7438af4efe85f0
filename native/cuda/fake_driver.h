// The control functions of the fake CUDA driver (tests/gpu/fake_driver/), for native tests.
//
// While an object exists, CudaRuntime uses the fake. Its destructor checks the fake's counters and
// resets the fake.
#pragma once

#include <cstddef>

namespace streamer {

class FakeDriver {
 public:
  FakeDriver();
  ~FakeDriver();
  FakeDriver(const FakeDriver&) = delete;
  FakeDriver& operator=(const FakeDriver&) = delete;

  static const char* path();

  void (*reset)() = nullptr;
  void (*set_devices)(int count) = nullptr;
  void (*set_copy_delay_us)(int microseconds) = nullptr;
  void (*set_start_delay_us)(int microseconds) = nullptr;
  void (*fail)(const char* function, int code, int after) = nullptr;
  void (*lose_device)(int code, int after) = nullptr;
  void (*hold_copies)(int is_held) = nullptr;
  void (*place)(const void* address, std::size_t bytes, int device) = nullptr;
  void (*enqueue_fill)(void* stream, void* address, std::size_t bytes, int value,
                       int delay_us) = nullptr;
  int (*calls)(const char* function) = nullptr;
  int (*violations)() = nullptr;
  int (*capture_mode)() = nullptr;
  std::size_t (*pinned_bytes)() = nullptr;
  void (*forget_pinned)() = nullptr;
  int (*live_streams)() = nullptr;
  int (*live_events)() = nullptr;
  int (*live_contexts)() = nullptr;

 private:
  void* library_;
};

}  // namespace streamer
