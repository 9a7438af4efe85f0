// Puts the copies of one block on a stream of its device, in as few calls as the driver allows.
//
// Each copy costs one call of the driver, a microsecond or two; a block of tiny tensors has
// thousands of copies. Drivers from CUDA 12.8 on take many copies in one call (cuMemcpyBatchAsync).
// For older drivers, and for a driver that refuses the batch, each copy is one call.
//
// Used by one thread.
#pragma once

#include <cstddef>
#include <vector>

#include "cuda/device.h"

namespace streamer {

class CopyBatch {
 public:
  explicit CopyBatch(const CudaDevice& device);

  // `from` must be pinned until the copy is done.
  void add(const std::byte* from, std::byte* to, std::size_t bytes);

  // Puts the added copies on the stream, in any order, and clears the list. Throws DeviceFailure.
  void start(CudaStreamHandle stream);

 private:
  bool start_together(CudaStreamHandle stream);
  void start_each(CudaStreamHandle stream);

  const CudaDevice& device_;
  bool takes_batches_;
  std::vector<CudaAddress> from_;
  std::vector<CudaAddress> to_;
  std::vector<std::size_t> bytes_;
};

}  // namespace streamer
