#include "cuda/pinned_memory.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/engine_thread.h"
#include "base/page_sizes.h"
#include "cuda/relaxed_capture.h"

namespace streamer {
namespace {

constexpr int kPreferNode = 1;  // MPOL_PREFERRED: takes memory of another node if this one is full

// The call is advice. A refusal, as in a container that forbids the call, only costs speed.
void prefer_node(void* address, std::size_t bytes, unsigned node) {
  std::array<unsigned long, 16> mask{};
  constexpr std::size_t kBits = sizeof(unsigned long) * CHAR_BIT;
  if (node >= mask.size() * kBits) return;
  mask[node / kBits] |= 1UL << (node % kBits);
  syscall(SYS_mbind, address, bytes, kPreferNode, mask.data(), mask.size() * kBits, 0);
}

void touch(std::byte* begin, const std::byte* end) {
  const std::size_t step = page_bytes();
  for (volatile std::byte* at = begin; at < end; at += step) *at = std::byte{0};
}

// The calling thread touches the first part, and also the parts for which the system starts no
// thread. One thread touches each step of 2 MiB as a whole, because it usually is one huge page.
void touch_by(unsigned threads, std::byte* data, std::size_t bytes) {
  const std::size_t steps = (bytes + kLargeStepBytes - 1) / kLargeStepBytes;
  const std::size_t share = (steps + threads - 1) / threads * kLargeStepBytes;
  std::vector<std::thread> others;
  others.reserve(threads);
  std::size_t end = bytes;  // the end of the part that is left for this thread
  try {
    while (end > share) {
      const std::size_t begin = (end - 1) / share * share;
      const auto work = [data, begin, end] { touch(data + begin, data + end); };
      others.push_back(start_engine_thread("touch", static_cast<unsigned>(others.size()), work));
      end = begin;
    }
  } catch (const std::system_error&) {
  }
  touch(data, data + end);
  for (std::thread& other : others) other.join();
}

// Maps fresh pages and makes the system fill them in now. Otherwise the driver would fill them in
// while it holds its only lock.
std::byte* map_and_touch(std::size_t bytes, std::optional<unsigned> node, unsigned threads) {
  void* raw = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  madvise(raw, bytes, huge_page_advice());
  // Copy-on-write in a child would move pages that the device uses.
  madvise(raw, bytes, MADV_DONTFORK);
  if (node) prefer_node(raw, bytes, *node);
  auto* const data = static_cast<std::byte*>(raw);
  touch_by(threads, data, bytes);
  return data;
}

DeviceFailure with_bytes(const DeviceFailure& failure, const CudaDevice& device,
                         std::size_t bytes) {
  ReadError error = failure.error();
  error.detail = device.label() + ": pinning " + std::to_string(bytes) +
                 " bytes of host memory for copies: " + error.detail;
  return DeviceFailure(std::move(error));
}

}  // namespace

PinnedMemory::PinnedMemory(std::shared_ptr<const CudaDevice> device, std::size_t bytes,
                           unsigned threads)
    : device_(std::move(device)), bytes_(bytes) {
  try {
    const CurrentContext current(*device_);
    if (register_mapping(bytes, threads)) return;
    const CudaDriver& driver = device_->driver();
    void* address = nullptr;
    driver.check(driver.host_alloc(&address, bytes, kHostAllocPortable), "the allocation");
    data_ = static_cast<std::byte*>(address);
  } catch (const DeviceFailure& failure) {
    throw with_bytes(failure, *device_, bytes);
  }
}

// Returns false if this system does not lock memory that the engine mapped. The caller then asks
// the driver for memory.
bool PinnedMemory::register_mapping(std::size_t bytes, unsigned threads) {
  std::byte* mapping = map_and_touch(bytes, device_->numa_node(), threads);
  if (mapping == nullptr) return false;
  if (device_->driver().host_register(mapping, bytes, kHostRegisterPortable) != kCudaSuccess) {
    munmap(mapping, bytes);
    return false;
  }
  data_ = mapping;
  is_mapping_ = true;
  return true;
}

std::size_t PinnedMemory::stride_of(std::size_t part_bytes) {
  return (part_bytes + kDirectAlignmentBytes - 1) / kDirectAlignmentBytes * kDirectAlignmentBytes;
}

std::vector<PinnedMemory> PinnedMemory::cut(PinnedMemory whole, std::size_t part_bytes) {
  const auto shared = std::make_shared<PinnedMemory>(std::move(whole));
  std::vector<PinnedMemory> parts;
  const std::size_t stride = stride_of(part_bytes);
  for (std::size_t at = 0; at + part_bytes <= shared->bytes_; at += stride) {
    PinnedMemory& part = parts.emplace_back();
    part.data_ = shared->data_ + at;
    part.bytes_ = part_bytes;
    part.whole_ = shared;
  }
  return parts;
}

void PinnedMemory::abandon() {
  data_ = nullptr;
  if (whole_) whole_->data_ = nullptr;
}

PinnedMemory::~PinnedMemory() {
  if (data_ == nullptr || whole_) return;
  const CudaDriver& driver = device_->driver();
  // The memory belongs to the parent. The mapping does not exist in this child.
  if (driver.is_forked()) return;
  const RelaxedCapture relaxed(driver);
  std::optional<CurrentContext> current;
  try {
    current.emplace(*device_);
  } catch (const DeviceFailure&) {  // the device is lost: the calls below may fail as well
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
  std::swap(whole_, other.whole_);
}

}  // namespace streamer
