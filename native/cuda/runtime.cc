#include "cuda/runtime.h"

#include <unistd.h>

#include <utility>
#include <vector>

namespace streamer {

CudaRuntime& CudaRuntime::instance() {
  static constinit std::atomic<CudaRuntime*> current{nullptr};
  CudaRuntime* runtime = current;
  if (runtime != nullptr && runtime->process_ == getpid()) return *runtime;
  auto* const created = new CudaRuntime(runtime);
  if (current.compare_exchange_strong(runtime, created)) return *created;
  delete created;  // another thread of this process created the runtime first
  return *runtime;
}

CudaRuntime::CudaRuntime(const CudaRuntime* parents)
    : process_(getpid()),
      is_refused_(parents != nullptr && (parents->is_used_ || parents->is_refused_)) {}

void CudaRuntime::refuse_in_child() const {
  if (!is_refused_) return;
  throw device_failure(
      "CUDA was used before this process was forked; start processes with the spawn method",
      "CUDA_ERROR_NOT_INITIALIZED");
}

std::shared_ptr<PinnedRing> CudaRuntime::ring(int device) {
  refuse_in_child();
  const std::lock_guard lock(mutex_);
  if (!driver_) load_driver();
  std::shared_ptr<PinnedRing>& ring = rings_[device];
  if (!ring) ring = std::make_shared<PinnedRing>(std::make_shared<CudaDevice>(driver_, device));
  return ring;
}

std::shared_ptr<const CudaDriver> CudaRuntime::driver() {
  const std::lock_guard lock(mutex_);
  return driver_;
}

// is_used_ is set first, because a child that is forked meanwhile inherits a half-started driver.
void CudaRuntime::load_driver() {
  is_used_ = true;
  try {
    driver_ = load_cuda_driver(path_);
  } catch (...) {
    is_used_ = false;
    throw;
  }
}

CudaRuntime::GpuDirect CudaRuntime::gpudirect(bool may_copy) {
  refuse_in_child();
  const std::lock_guard lock(mutex_);
  const auto open_once = [this](std::optional<GpuDirect>& opened, bool copies) {
    if (opened) return *opened;
    std::optional<RelaxedCapture> relaxed;  // the library calls the driver
    if (driver_) relaxed.emplace(*driver_);
    opened.emplace();
    opened->library = CuFile::open(cufile_paths_, copies, opened->reason);
    return *opened;
  };
  GpuDirect exact = open_once(gpudirect_without_copies_, false);
  if (exact.library || !may_copy) return exact;
  return open_once(gpudirect_with_copies_, true);
}

std::uint64_t CudaRuntime::release_free() {
  refuse_in_child();
  std::vector<std::shared_ptr<PinnedRing>> rings;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [device, ring] : rings_) {
      if (ring) rings.push_back(ring);
    }
  }
  std::uint64_t bytes = 0;
  for (const auto& ring : rings) bytes += ring->release_free();
  return bytes;
}

RingStats CudaRuntime::stats() {
  refuse_in_child();
  RingStats sum;
  const std::lock_guard lock(mutex_);
  for (const auto& [device, ring] : rings_) {
    if (!ring) continue;
    const RingStats one = ring->stats();
    sum.pinned_bytes += one.pinned_bytes;
    sum.free_bytes += one.free_bytes;
    sum.abandoned_bytes += one.abandoned_bytes;
  }
  return sum;
}

void CudaRuntime::use_library_for_tests(std::string path) {
  refuse_in_child();
  std::map<int, std::shared_ptr<PinnedRing>> forgotten;  // destroyed after the lock is released
  const std::lock_guard lock(mutex_);
  forgotten.swap(rings_);
  driver_.reset();
  is_used_ = false;
  path_ = path.empty() ? kCudaLibrary : std::move(path);
}

void CudaRuntime::use_cufile_for_tests(CuFilePaths paths) {
  const std::lock_guard lock(mutex_);
  gpudirect_without_copies_.reset();
  gpudirect_with_copies_.reset();
  cufile_paths_ = std::move(paths);
}

}  // namespace streamer
