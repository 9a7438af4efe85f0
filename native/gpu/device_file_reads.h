// Reads blocks of files straight into the memory of their device, through GPUDirect Storage.
//
// A file that the library does not support, or fails to read, gives the error ENOTSUP. The file is
// then read through the pinned ring. If the file itself has a fault, that read reports it.
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

  // Like FileReader::read, for a block whose destinations are memory of the copier's device.
  std::optional<ReadError> read(FileReader& file, Block& block, DeviceCopier& copier,
                                const std::function<bool()>& is_cancelled);

  // Returns the library's last error: the library's own code, or an errno, which is below 5000.
  // Returns 0 if there was none.
  int refusal() const { return refusal_; }

 private:
  ssize_t read_some(OpenFile& file, const SegmentCursor& cursor, off_t offset,
                    const CudaDevice& device);
  std::shared_ptr<void> add(int descriptor, const CudaDevice& device);

  const std::shared_ptr<const CuFile> library_;
  std::atomic<int> refusal_{0};
};

}  // namespace streamer
