// The devices of one load: a copier and its thread's work for each, between the scheduler and the
// pinned rings of the process.
//
// start() comes before everything else; the rest may be called from any thread.
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
  // By device: a stream of the consumer's. What it was given by now may still use the memory of the
  // items' targets, so copies to the device wait for it.
  using ConsumerStreams = std::map<std::int32_t, CudaStreamHandle>;

  // The devices that a plan names, and the targets on them that the caller gave.
  struct Wanted {
    explicit Wanted(const Plan& plan);

    std::map<std::int32_t, std::vector<std::byte*>> targets;
    std::map<std::int32_t, std::uint64_t> bytes;  // of all items
  };

  // Of the pinned memory of each device.
  struct RingSize {
    std::uint64_t pinned_bytes = 0;  // at most
    std::size_t slot_bytes = 0;
    std::uint64_t first_slots = 0;  // pinned before they are asked for, unless the load is smaller
  };

  // Throws DeviceFailure: a device cannot be had, or a target is not on its device.
  void start(const Wanted& wanted, Scheduler& scheduler, const RingSize& size,
             const ConsumerStreams& streams);

  // Memory for items that the scheduler asked for, all on one device or on the consumer's host.
  // Throws DeviceFailure.
  void provide(Scheduler& scheduler, std::int32_t device, CudaStreamHandle stream,
               const std::vector<std::uint32_t>& items, const std::vector<std::byte*>& targets);

  // The NUMA node that all devices are on; none where they are on several, or one's is not known.
  // For `system_root` see read_numa_nodes().
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
