// Reads blocks of files straight into the memory of their device, by GPUDirect Storage.
//
// A file that the library does not support, or that it fails to read, is told as ENOTSUP: it is
// then read through the pinned ring, which says what is wrong with it if anything is.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>

#include "cuda/cufile.h"
#include "gpu/device_copier.h"
#include "io/file_reader.h"

namespace streamer {

class DeviceFileReads {
 public:
  explicit DeviceFileReads(std::shared_ptr<const CuFile> library) : library_(std::move(library)) {}

  // As FileReader::read, of a block whose destinations are memory of the copier's device.
  std::optional<ReadError> read(FileReader& file, Block& block, DeviceCopier& copier,
                                const std::function<bool()>& is_cancelled);

  // With what the library last refused a file or failed to read one: its own code, or that of
  // errno, which is below 5000. 0 when it never did.
  int refusal() const { return refusal_; }

 private:
  ssize_t read_some(OpenFile& file, const SegmentCursor& cursor, off_t offset,
                    const CudaDevice& device);
  std::shared_ptr<void> add(int descriptor, const CudaDevice& device);

  const std::shared_ptr<const CuFile> library_;
  std::atomic<int> refusal_{0};
};

}  // namespace streamer
