#include "cuda/pinned_memory.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <optional>
#include <string>
#include <utility>

namespace streamer {
namespace {

constexpr std::size_t kSmallPageBytes = 4096;
constexpr int kPreferNode = 1;  // MPOL_PREFERRED: elsewhere when that node is full

// Advice: a refusal (a container without the call) only costs speed.
void prefer_node(void* address, std::size_t bytes, unsigned node) {
  std::array<unsigned long, 16> mask{};
  constexpr std::size_t kBits = sizeof(unsigned long) * CHAR_BIT;
  if (node >= mask.size() * kBits) return;
  mask[node / kBits] |= 1UL << (node % kBits);
  syscall(SYS_mbind, address, bytes, kPreferNode, mask.data(), mask.size() * kBits, 0);
}

// Fresh pages, filled in by this thread: the driver would do it under its one lock.
std::byte* map_and_touch(std::size_t bytes, std::optional<unsigned> node) {
  void* raw = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  madvise(raw, bytes, MADV_HUGEPAGE);
  madvise(raw, bytes, MADV_DONTFORK);  // a child's copy on write would move pages under the device
  if (node) prefer_node(raw, bytes, *node);
  auto* data = static_cast<volatile std::byte*>(raw);
  for (std::size_t at = 0; at < bytes; at += kSmallPageBytes) data[at] = std::byte{0};
  return static_cast<std::byte*>(raw);
}

DeviceFailure with_bytes(const DeviceFailure& failure, const CudaDevice& device,
                         std::size_t bytes) {
  ReadError error = failure.error();
  error.detail = device.label() + ": pinning " + std::to_string(bytes) +
                 " bytes of host memory for copies: " + error.detail;
  return DeviceFailure(std::move(error));
}

}  // namespace

PinnedMemory::PinnedMemory(std::shared_ptr<const CudaDevice> device, std::size_t bytes)
    : device_(std::move(device)), bytes_(bytes) {
  try {
    const CurrentContext current(*device_);
    if (register_mapping(bytes)) return;
    const CudaDriver& driver = device_->driver();
    void* address = nullptr;
    driver.check(driver.host_alloc(&address, bytes, kHostAllocPortable), "the allocation");
    data_ = static_cast<std::byte*>(address);
  } catch (const DeviceFailure& failure) {
    throw with_bytes(failure, *device_, bytes);
  }
}

// False where this system does not lock memory of ours; the driver's own is tried then.
bool PinnedMemory::register_mapping(std::size_t bytes) {
  std::byte* mapping = map_and_touch(bytes, device_->numa_node());
  if (mapping == nullptr) return false;
  if (device_->driver().host_register(mapping, bytes, kHostRegisterPortable) != kCudaSuccess) {
    munmap(mapping, bytes);
    return false;
  }
  data_ = mapping;
  is_mapping_ = true;
  return true;
}

PinnedMemory::~PinnedMemory() {
  if (data_ == nullptr) return;
  const CudaDriver& driver = device_->driver();
  if (driver.is_forked()) return;  // the parent's; the mapping does not even exist here
  std::optional<CurrentContext> current;
  try {
    current.emplace(*device_);
  } catch (const DeviceFailure&) {  // a lost device; tried without it, and else gone with it
  }
  if (is_mapping_) driver.host_unregister(data_);
  if (!is_mapping_) driver.host_free(data_);
  if (is_mapping_) munmap(data_, bytes_);
}

void PinnedMemory::swap(PinnedMemory& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(is_mapping_, other.is_mapping_);
}

}  // namespace streamer
