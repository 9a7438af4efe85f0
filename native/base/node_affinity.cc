#include "base/node_affinity.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

namespace streamer {
namespace {

// As large as the mask of any kernel: a kernel refuses to write its mask to a smaller buffer.
using Mask = std::array<cpu_set_t, kMostProcessors / CPU_SETSIZE>;

// Returns an empty set if the system does not report the mask.
Processors allowed_processors() {
  Mask mask{};
  Processors allowed;
  if (sched_getaffinity(0, sizeof mask, mask.data()) != 0) return allowed;
  for (unsigned processor = 0; processor < kMostProcessors; ++processor) {
    if (CPU_ISSET_S(processor, sizeof mask, mask.data())) allowed.insert(processor);
  }
  return allowed;
}

std::optional<unsigned> current_processor() {
  const int processor = sched_getcpu();
  return processor < 0 ? std::nullopt : std::optional(static_cast<unsigned>(processor));
}

Processors intersection(const Processors& one, const Processors& other) {
  Processors shared;
  std::set_intersection(one.begin(), one.end(), other.begin(), other.end(),
                        std::inserter(shared, shared.end()));
  return shared;
}

}  // namespace

Processors processors_of_one_node(const NumaNodes& nodes, const Processors& allowed,
                                  std::optional<unsigned> here, std::optional<unsigned> wanted) {
  NumaNodes usable;
  for (const auto& [node, processors] : nodes) {
    Processors shared = intersection(processors, allowed);
    if (!shared.empty()) usable.emplace(node, std::move(shared));
  }
  if (usable.size() < 2) return {};
  if (wanted && usable.contains(*wanted)) return usable.at(*wanted);
  for (const auto& [node, processors] : usable) {
    if (here && processors.contains(*here)) return processors;
  }
  return {};
}

void stay_on_one_node(const NumaNodes& nodes, std::optional<unsigned> wanted) {
  if (nodes.size() < 2) return;  // most machines: no system call is needed
  const Processors chosen =
      processors_of_one_node(nodes, allowed_processors(), current_processor(), wanted);
  if (chosen.empty()) return;
  Mask mask{};
  for (const unsigned processor : chosen) CPU_SET_S(processor, sizeof mask, mask.data());
  (void)sched_setaffinity(0, sizeof mask, mask.data());
}

}  // namespace streamer
