// What this process knows of its CUDA devices: the driver, loaded with the first one that is asked
// for, and one pinned ring for each.
//
// A child of a process that used CUDA cannot use it (the driver's own rule) and is refused. It has
// a runtime of its own, since a thread that it does not have may have locked its parent's.
// Thread-safe; never destroyed, as tensors and threads may outlive static destructors.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "cuda/cufile.h"
#include "cuda/pinned_ring.h"

namespace streamer {

class CudaRuntime {
 public:
  static CudaRuntime& instance();

  // The ring of a device, whose context it opens. Throws DeviceFailure.
  std::shared_ptr<PinnedRing> ring(int device);

  // The driver; null before the first ring.
  std::shared_ptr<const CudaDriver> driver();

  // GPUDirect Storage; null where it cannot be used, for a reason that is told. One that reads
  // straight, and refuses what it cannot read so, if there is such; one that may copy only where
  // that was asked for.
  struct GpuDirect {
    std::shared_ptr<const CuFile> library;
    std::string reason;
  };
  GpuDirect gpudirect(bool may_copy);

  // Unpins what no load uses, on all devices; returns the bytes.
  std::uint64_t release_free();
  RingStats stats();

  // For tests alone: forgets every device and takes another library from here on; an empty path is
  // the real driver. Loads that run keep what they have.
  void use_library_for_tests(std::string path);
  // As well; the kernel module and its device are any files.
  void use_cufile_for_tests(CuFilePaths paths);

 private:
  explicit CudaRuntime(const CudaRuntime* parents);
  void refuse_in_child() const;
  void load_driver();

  const pid_t process_;
  const bool is_refused_;             // a process above this one used CUDA
  std::atomic<bool> is_used_{false};  // the driver is loaded, or about to be
  std::mutex mutex_;                  // guards everything below
  std::string path_ = kCudaLibrary;
  std::shared_ptr<const CudaDriver> driver_;
  std::map<int, std::shared_ptr<PinnedRing>> rings_;
  CuFilePaths cufile_paths_;
  // Asked for once.
  std::optional<GpuDirect> gpudirect_without_copies_;
  std::optional<GpuDirect> gpudirect_with_copies_;
};

}  // namespace streamer
