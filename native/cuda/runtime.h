// The CUDA state of this process: the driver, which is loaded when the first device is requested,
// and one pinned ring for each device.
//
// A child of a process that used CUDA cannot use it (a rule of the driver) and gets an error. The
// child has its own runtime: the lock of the parent's runtime may be held by a thread that does not
// exist in the child. Thread-safe. Never destroyed, because tensors and threads may outlive static
// destructors.
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

  // Returns the ring of a device. The first call opens the device's context. Throws DeviceFailure.
  std::shared_ptr<PinnedRing> ring(int device);

  // Returns the driver; null before the first ring.
  std::shared_ptr<const CudaDriver> driver();

  // Returns GPUDirect Storage. `library` is null if it cannot be used, and `reason` says why. The
  // mode without copies, which refuses files that the library cannot read directly, is tried first.
  // The mode with copies is returned only if the caller allows it.
  struct GpuDirect {
    std::shared_ptr<const CuFile> library;
    std::string reason;
  };
  GpuDirect gpudirect(bool may_copy);

  // Unpins the slots that no load uses, on all devices, and returns the number of their bytes.
  std::uint64_t release_free();
  RingStats stats();

  // For tests only: forgets every device and then uses another library; an empty path means the
  // real driver. Running loads keep their devices.
  void use_library_for_tests(std::string path);
  // For tests only: any files can stand for the kernel module and its device.
  void use_cufile_for_tests(CuFilePaths paths);

 private:
  explicit CudaRuntime(const CudaRuntime* parents);
  void refuse_in_child() const;
  void load_driver();

  const pid_t process_;
  const bool is_refused_;             // a parent process, or one of its parents, used CUDA
  std::atomic<bool> is_used_{false};  // the driver is loaded or being loaded
  std::mutex mutex_;                  // guards everything below
  std::string path_ = kCudaLibrary;
  std::shared_ptr<const CudaDriver> driver_;
  std::map<int, std::shared_ptr<PinnedRing>> rings_;
  CuFilePaths cufile_paths_;
  // Opened at the first request, and kept.
  std::optional<GpuDirect> gpudirect_without_copies_;
  std::optional<GpuDirect> gpudirect_with_copies_;
};

}  // namespace streamer
