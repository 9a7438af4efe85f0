// Host memory that a CUDA device copies from by itself: page-locked, near the device where the
// system tells which node that is, on huge pages where it has them.
#pragma once

#include <cstddef>
#include <memory>

#include "cuda/device.h"

namespace streamer {

// Move-only; unlocks and frees when destroyed.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  // Throws DeviceFailure, which names the bytes asked for.
  PinnedMemory(std::shared_ptr<const CudaDevice> device, std::size_t bytes);
  PinnedMemory(PinnedMemory&& other) noexcept { swap(other); }
  PinnedMemory& operator=(PinnedMemory&& other) noexcept {
    PinnedMemory(std::move(other)).swap(*this);
    return *this;
  }
  ~PinnedMemory();

  std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }

  // Leaves the memory to a device that may still read it: it is never freed.
  void abandon() { data_ = nullptr; }

 private:
  void swap(PinnedMemory& other) noexcept;
  bool register_mapping(std::size_t bytes);

  std::shared_ptr<const CudaDevice> device_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  bool is_mapping_ = false;  // ours, registered; else the driver's own allocation
};

}  // namespace streamer
