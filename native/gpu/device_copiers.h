// The devices of one load. Each device has one copier, between the scheduler and the device's
// pinned ring, which all loads of the process share.
//
// Call start() before everything else. The rest may be called from any thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpu/device_copier.h"

namespace streamer {

class DeviceCopiers {
 public:
  // Maps a device to a stream of the consumer. Work that is on the stream now may still use the
  // memory of the items' targets, so copies to the device wait for this work.
  using ConsumerStreams = std::map<std::int32_t, CudaStreamHandle>;

  // The devices that a plan names, and the caller's own targets on these devices.
  struct Wanted {
    explicit Wanted(const Plan& plan);

    std::map<std::int32_t, std::vector<std::byte*>> targets;
    std::map<std::int32_t, std::uint64_t> bytes;  // the bytes of all items
  };

  // The size of the pinned memory of each device.
  struct RingSize {
    std::uint64_t pinned_bytes = 0;  // upper limit
    std::size_t slot_bytes = 0;
    std::uint64_t first_slots = 0;  // pinned before they are requested; fewer for a small load
  };

  // Throws DeviceFailure if a device cannot be opened, or a target is not on its device.
  void start(const Wanted& wanted, Scheduler& scheduler, const RingSize& size,
             const ConsumerStreams& streams);

  // Passes the memory that the scheduler requested for items, all on one device or in the
  // consumer's host memory. Throws DeviceFailure.
  void provide(Scheduler& scheduler, std::int32_t device, CudaStreamHandle stream,
               const std::vector<std::uint32_t>& items, const std::vector<std::byte*>& targets);

  // Returns the NUMA node of all devices; nothing if they are on several nodes, or if the node of a
  // device is not known. For `system_root` see read_numa_nodes().
  std::optional<unsigned> common_numa_node(const std::string& system_root) const;

  void stop();
  std::uint64_t peak_pinned_bytes() const;
  bool has_abandoned() const;

  const std::map<std::int32_t, std::unique_ptr<DeviceCopier>>& by_device() const {
    return copiers_;
  }

 private:
  std::map<std::int32_t, std::unique_ptr<DeviceCopier>> copiers_;
};

}  // namespace streamer
