// The copies of one block to a device, put on a stream in as few calls as the driver takes.
//
// A copy costs a call of the driver, a microsecond or two; a block of tiny tensors has thousands.
// Drivers from CUDA 12.8 on take many at once (cuMemcpyBatchAsync); others get them one by one, and
// so does one that refuses the batch.
//
// One thread.
#pragma once

#include <cstddef>
#include <vector>

#include "cuda/device.h"

namespace streamer {

class CopyBatch {
 public:
  explicit CopyBatch(const CudaDevice& device);

  // `from` is pinned, and stays so until the copy is done.
  void add(const std::byte* from, std::byte* to, std::size_t bytes);

  // Puts on the stream what was added, in any order, and forgets it. Throws DeviceFailure.
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
