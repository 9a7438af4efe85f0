#include "cuda/copy_batch.h"

#include <string>

namespace streamer {
namespace {

// A smaller number of copies is started one by one, because the difference is too small to matter.
// The number is an estimate, not a measurement.
constexpr std::size_t kSmallestBatch = 32;

CudaAddress address_of(const std::byte* pointer) {
  return static_cast<CudaAddress>(reinterpret_cast<std::uintptr_t>(pointer));
}

}  // namespace

CopyBatch::CopyBatch(const CudaDevice& device)
    : device_(device), takes_batches_(device.driver().copy_batch != nullptr) {}

void CopyBatch::add(const std::byte* from, std::byte* to, std::size_t bytes) {
  from_.push_back(address_of(from));
  to_.push_back(address_of(to));
  bytes_.push_back(bytes);
}

void CopyBatch::start(CudaStreamHandle stream) {
  const bool is_worth_it = takes_batches_ && bytes_.size() >= kSmallestBatch;
  if (!is_worth_it || !start_together(stream)) start_each(stream);
  from_.clear();
  to_.clear();
  bytes_.clear();
}

// Returns false if the driver refuses batches. The driver may have started some of the copies by
// then. They write the same bytes to the same place as the single copies that follow.
bool CopyBatch::start_together(CudaStreamHandle stream) {
  CudaCopyAttributes attributes;  // the attributes of every copy
  std::size_t first_copy = 0;
  std::size_t failed = 0;
  const CudaDriver& driver = device_.driver();
  const int code = driver.copy_batch(to_.data(), from_.data(), bytes_.data(), bytes_.size(),
                                     &attributes, &first_copy, 1, &failed, stream);
  if (code == kCudaInvalidValue || code == kCudaNotSupported) {
    takes_batches_ = false;
    return false;
  }
  driver.check(code, "copying " + std::to_string(bytes_.size()) + " pieces to " + device_.label());
  return true;
}

void CopyBatch::start_each(CudaStreamHandle stream) {
  const CudaDriver& driver = device_.driver();
  for (std::size_t i = 0; i < bytes_.size(); ++i) {
    const auto* from = reinterpret_cast<const void*>(static_cast<std::uintptr_t>(from_[i]));
    driver.check(driver.copy_to_device(to_[i], from, bytes_[i], stream),
                 "copying " + std::to_string(bytes_[i]) + " bytes to " + device_.label());
  }
}

}  // namespace streamer
