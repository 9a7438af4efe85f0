// One CUDA device through its primary context, which torch uses as well, and the device's streams
// and events.
//
// Every class here releases its resources when it is destroyed, except in a forked child, where the
// driver must not be called. A handle must not outlive its device.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/driver.h"
#include "cuda/relaxed_capture.h"

namespace streamer {

class CudaDevice {
 public:
  struct MemoryInfo {
    std::uint64_t free_bytes = 0;
    std::uint64_t total_bytes = 0;
  };

  // Throws DeviceFailure if there is no such device, or its context cannot be opened.
  CudaDevice(std::shared_ptr<const CudaDriver> driver, int index);
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  const CudaDriver& driver() const { return *driver_; }
  const std::shared_ptr<const CudaDriver>& shared_driver() const { return driver_; }
  int index() const { return index_; }
  std::string label() const { return "cuda:" + std::to_string(index_); }
  // The device's name under /sys/bus/pci/devices; empty if the driver does not report it.
  const std::string& pci_address() const { return pci_address_; }
  // The node of the device's bus; nothing if the system does not report it.
  std::optional<unsigned> numa_node() const { return numa_node_; }

  // Throws DeviceFailure.
  MemoryInfo memory() const;
  // Throws DeviceFailure if the driver reports that an address is memory of another device.
  void check_addresses(const std::vector<std::byte*>& addresses) const;

 private:
  friend class CurrentContext;

  std::shared_ptr<const CudaDriver> driver_;
  int index_;
  int handle_ = 0;
  CudaContextHandle context_ = nullptr;
  std::string pci_address_;
  std::optional<unsigned> numa_node_;
};

// Makes the device current on this thread until this object is destroyed. Calls of the driver then
// do not disturb captures.
class CurrentContext {
 public:
  explicit CurrentContext(const CudaDevice& device);
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  const CudaDriver& driver_;
  const RelaxedCapture relaxed_;
};

// A stream that never waits for the legacy default stream. The device must be current when the
// stream is made and destroyed.
class CudaStream {
 public:
  explicit CudaStream(const CudaDevice& device);
  ~CudaStream();
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  CudaStreamHandle handle() const { return handle_; }

 private:
  const CudaDriver& driver_;
  CudaStreamHandle handle_ = nullptr;
};

// An event that fires when all work put on a stream before it is done. The device must be current
// when the event is made and destroyed.
class CudaEvent {
 public:
  explicit CudaEvent(const CudaDevice& device);
  ~CudaEvent();
  CudaEvent(CudaEvent&& other) noexcept
      : device_(other.device_), handle_(std::exchange(other.handle_, nullptr)) {}
  CudaEvent& operator=(CudaEvent&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(handle_, other.handle_);
    return *this;
  }

  void record(CudaStreamHandle stream);
  // Throws DeviceFailure if the work before the event failed.
  bool has_fired() const;
  CudaEventHandle handle() const { return handle_; }

 private:
  const CudaDevice* device_;
  CudaEventHandle handle_ = nullptr;
};

}  // namespace streamer
