// Host memory that a CUDA device copies from by itself: page-locked, near the device where the
// system tells which node that is, on huge pages where the engine uses them.
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
  // Fresh pages are filled in by so many threads: one fills some 6 GB/s, and the driver locks none
  // before. Throws DeviceFailure, which names the bytes asked for.
  PinnedMemory(std::shared_ptr<const CudaDevice> device, std::size_t bytes, unsigned threads = 1);
  PinnedMemory(PinnedMemory&& other) noexcept { swap(other); }
  PinnedMemory& operator=(PinnedMemory&& other) noexcept {
    PinnedMemory(std::move(other)).swap(*this);
    return *this;
  }
  ~PinnedMemory();

  std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }

  // Cuts the memory into parts of `part_bytes`. The begin of each part is aligned for direct reads;
  // a shorter rest at the end is not used. The memory is unlocked and freed with its last part.
  // Locking the whole at once costs the driver a third of the time of locking each part.
  static std::vector<PinnedMemory> cut(PinnedMemory whole, std::size_t part_bytes);
  // What a part of `part_bytes` takes of the whole.
  static std::size_t stride_of(std::size_t part_bytes);

  // Leaves the memory to a device that may still read it: it is never freed, nor are other parts.
  void abandon();

 private:
  void swap(PinnedMemory& other) noexcept;
  bool register_mapping(std::size_t bytes, unsigned threads);

  std::shared_ptr<const CudaDevice> device_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  bool is_mapping_ = false;              // ours, registered; else the driver's own allocation
  std::shared_ptr<PinnedMemory> whole_;  // of a part: what is freed
};

}  // namespace streamer
