// Which processors are near to which memory, as Linux tells under /sys.
//
// A machine of several sockets, or of one that is divided, has several NUMA nodes: processors with
// memory and devices of their own. What lies on another node is further away.
//
// A file that is absent or malformed means "not known". That is no error: whoever asks does then
// what is right on a machine of one node.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace streamer {

using Processors = std::set<unsigned>;
// By the number of the node. One that has memory alone has no processors.
using NumaNodes = std::map<unsigned, Processors>;

// No kernel has more processors (NR_CPUS), or as many nodes. A list that names more is malformed.
inline constexpr unsigned kMostProcessors = 8192;

// "0-3,8" and the like, without the end of the line; an empty list has no numbers.
std::optional<std::set<unsigned>> parse_number_list(std::string_view text);

// The nodes that are online; none where any of them is not known. `system_root` stands before
// /sys: empty, but for tests.
NumaNodes read_numa_nodes(const std::string& system_root);

// Of a device at an address like "0000:3b:00.0"; the kernel itself may not know it.
std::optional<unsigned> numa_node_of_pci_device(const std::string& system_root,
                                                const std::string& address);

// The one that all of them are; none where they differ, one is not known, or there are none.
std::optional<unsigned> common_node(const std::vector<std::optional<unsigned>>& nodes);

}  // namespace streamer
