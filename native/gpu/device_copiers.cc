#include "gpu/device_copiers.h"

#include <algorithm>

#include "base/numa_nodes.h"
#include "cuda/runtime.h"

namespace streamer {

DeviceCopiers::Wanted::Wanted(const Plan& plan) {
  for (const Item& item : plan.items) {
    if (!is_on_device(item.device)) continue;
    bytes[item.device] += item.size();
    std::vector<std::byte*>& addresses = targets[item.device];
    if (item.target != nullptr && item.size() > 0) addresses.push_back(item.target);
  }
}

void DeviceCopiers::start(const Wanted& wanted, Scheduler& scheduler, const RingSize& size,
                          const ConsumerStreams& streams) {
  for (const auto& [device, targets] : wanted.targets) {
    const std::shared_ptr<PinnedRing> ring = CudaRuntime::instance().ring(device);
    ring->device()->check_addresses(targets);
    const std::uint64_t blocks = wanted.bytes.at(device) / size.slot_bytes + 1;
    auto copier = std::make_unique<DeviceCopier>(
        scheduler, ring, size.pinned_bytes, size.slot_bytes, std::min(size.first_slots, blocks));
    const auto stream = streams.find(device);
    if (stream != streams.end()) copier->wait_for(stream->second);
    copiers_[device] = std::move(copier);
  }
  for (const auto& [device, copier] : copiers_) scheduler.add_device(device, copier->lane());
}

void DeviceCopiers::provide(Scheduler& scheduler, std::int32_t device, CudaStreamHandle stream,
                            const std::vector<std::uint32_t>& items,
                            const std::vector<std::byte*>& targets) {
  if (is_on_device(device)) {
    DeviceCopier& copier = *copiers_.at(device);
    copier.device().check_addresses(targets);
    copier.wait_for(stream);
  }
  scheduler.provide(items, targets);
}

std::optional<unsigned> DeviceCopiers::common_numa_node(const std::string& system_root) const {
  std::vector<std::optional<unsigned>> nodes;
  for (const auto& [device, copier] : copiers_) {
    nodes.push_back(numa_node_of_pci_device(system_root, copier->device().pci_address()));
  }
  return common_node(nodes);
}

void DeviceCopiers::stop() {
  for (const auto& [device, copier] : copiers_) copier->stop();
}

std::uint64_t DeviceCopiers::peak_pinned_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [device, copier] : copiers_) bytes += copier->peak_pinned_bytes();
  return bytes;
}

bool DeviceCopiers::has_abandoned() const {
  for (const auto& [device, copier] : copiers_) {
    if (copier->has_abandoned()) return true;
  }
  return false;
}

}  // namespace streamer
