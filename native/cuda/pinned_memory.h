// Host memory that a CUDA device copies from directly. It is page-locked, on the device's NUMA node
// if the system reports it, and on huge pages if the engine uses them.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "cuda/device.h"

namespace streamer {

// Move-only; unlocks and frees when destroyed.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  // `threads` threads fill in the fresh pages: one thread fills some 6 GB/s, and the driver only
  // locks pages that are filled in. Throws DeviceFailure, which names the requested bytes.
  PinnedMemory(std::shared_ptr<const CudaDevice> device, std::size_t bytes, unsigned threads = 1);
  PinnedMemory(PinnedMemory&& other) noexcept { swap(other); }
  PinnedMemory& operator=(PinnedMemory&& other) noexcept {
    PinnedMemory(std::move(other)).swap(*this);
    return *this;
  }
  ~PinnedMemory();

  std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }

  // Cuts the memory into parts of `part_bytes`. The start of each part is aligned for direct reads;
  // a shorter rest at the end is not used. The memory is unlocked and freed with its last part.
  // Locking all parts at once costs the driver a third of the time of locking each part.
  static std::vector<PinnedMemory> cut(PinnedMemory whole, std::size_t part_bytes);
  // Returns how many bytes of the whole memory a part of `part_bytes` occupies.
  static std::size_t stride_of(std::size_t part_bytes);

  // Leaves the memory to a device that may still read it. Neither this part nor other parts of the
  // same memory are ever freed.
  void abandon();

 private:
  void swap(PinnedMemory& other) noexcept;
  bool register_mapping(std::size_t bytes, unsigned threads);

  std::shared_ptr<const CudaDevice> device_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  bool is_mapping_ = false;              // mapped here and registered; else the driver allocated it
  std::shared_ptr<PinnedMemory> whole_;  // only in a part: freed with the last part
};

}  // namespace streamer
