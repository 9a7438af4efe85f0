#include "cuda/device.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "base/numa_nodes.h"

namespace streamer {
namespace {

constexpr const char* kInvalidDevice = "CUDA_ERROR_INVALID_DEVICE";

// Returns the address in lower case, as under /sys; the driver uses upper case.
std::string pci_address_of(const CudaDriver& driver, int device) {
  std::array<char, 32> id{};
  if (driver.device_pci_id == nullptr) return {};
  if (driver.device_pci_id(id.data(), static_cast<int>(id.size()), device) != kCudaSuccess) {
    return {};
  }
  std::string address(id.data());
  std::transform(address.begin(), address.end(), address.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  return address;
}

}  // namespace

CudaDevice::CudaDevice(std::shared_ptr<const CudaDriver> driver, int index)
    : driver_(std::move(driver)), index_(index) {
  const RelaxedCapture relaxed(*driver_);
  int count = 0;
  driver_->check(driver_->device_count(&count), "counting CUDA devices");
  if (index < 0 || index >= count) {
    throw device_failure("there is no " + label() + ": CUDA_VISIBLE_DEVICES and the driver leave " +
                             std::to_string(count) + " devices",
                         count == 0 ? "CUDA_ERROR_NO_DEVICE" : kInvalidDevice);
  }
  driver_->check(driver_->device_get(&handle_, index), "finding " + label());
  driver_->check(driver_->context_retain(&context_, handle_), "opening " + label());
  pci_address_ = pci_address_of(*driver_, handle_);
  numa_node_ = numa_node_of_pci_device("", pci_address_);
}

CudaDevice::~CudaDevice() {
  if (driver_->is_forked()) return;
  const RelaxedCapture relaxed(*driver_);
  driver_->context_release(handle_);
}

CudaDevice::MemoryInfo CudaDevice::memory() const {
  const CurrentContext current(*this);
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  driver_->check(driver_->memory_info(&free_bytes, &total_bytes), "querying the free memory");
  return {free_bytes, total_bytes};
}

void CudaDevice::check_addresses(const std::vector<std::byte*>& addresses) const {
  if (driver_->pointer_attribute == nullptr || addresses.empty()) return;
  const CurrentContext current(*this);
  for (const std::byte* target : addresses) {
    const auto address = static_cast<CudaAddress>(reinterpret_cast<std::uintptr_t>(target));
    int ordinal = index_;
    const int code = driver_->pointer_attribute(&ordinal, kPointerAttributeDeviceOrdinal, address);
    // If the driver does not know the address, the copy fails instead.
    if (code != kCudaSuccess || ordinal == index_) continue;
    throw device_failure("a target for " + label() + " is on another device: its address is cuda:" +
                             std::to_string(ordinal),
                         kInvalidDevice);
  }
}

CurrentContext::CurrentContext(const CudaDevice& device)
    : driver_(device.driver()), relaxed_(driver_) {
  driver_.check(driver_.context_push(device.context_), "using " + device.label());
}

CurrentContext::~CurrentContext() {
  CudaContextHandle popped = nullptr;
  driver_.context_pop(&popped);
}

CudaStream::CudaStream(const CudaDevice& device) : driver_(device.driver()) {
  driver_.check(driver_.stream_create(&handle_, kStreamNonBlocking),
                "creating a stream on " + device.label());
}

CudaStream::~CudaStream() {
  if (!driver_.is_forked()) driver_.stream_destroy(handle_);
}

CudaEvent::CudaEvent(const CudaDevice& device) : device_(&device) {
  const CudaDriver& driver = device.driver();
  driver.check(driver.event_create(&handle_, kEventDisableTiming),
               "creating an event on " + device.label());
}

CudaEvent::~CudaEvent() {
  const CudaDriver& driver = device_->driver();
  if (handle_ != nullptr && !driver.is_forked()) driver.event_destroy(handle_);
}

void CudaEvent::record(CudaStreamHandle stream) {
  const CudaDriver& driver = device_->driver();
  driver.check(driver.event_record(handle_, stream), "recording an event on " + device_->label());
}

bool CudaEvent::has_fired() const {
  const CudaDriver& driver = device_->driver();
  const int code = driver.event_query(handle_);
  if (code == kCudaNotReady) return false;
  driver.check(code, "copying to " + device_->label());
  return true;
}

}  // namespace streamer
