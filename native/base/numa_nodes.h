// Which processors are near to which memory, as Linux reports it under /sys.
//
// A machine with several sockets, or with one socket that is divided, has several NUMA nodes:
// processors with memory and devices of their own. Access to another node is slower.
//
// A file that is absent or malformed means "not known". This is not an error: the caller then acts
// as on a machine with one node.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace streamer {

using Processors = std::set<unsigned>;
// Maps the number of a node to its processors. A node that only has memory has an empty set.
using NumaNodes = std::map<unsigned, Processors>;

// No kernel has more processors (NR_CPUS) or more nodes. A list with a larger number is malformed.
inline constexpr unsigned kMostProcessors = 8192;

// Parses text like "0-3,8", without the end of the line. The empty text is the empty list.
std::optional<std::set<unsigned>> parse_number_list(std::string_view text);

// Returns the nodes that are online; an empty map if any of them is not known. `system_root` is put
// before /sys; only tests set it.
NumaNodes read_numa_nodes(const std::string& system_root);

// Returns the node of the device at an address like "0000:3b:00.0". The kernel may not know it.
std::optional<unsigned> numa_node_of_pci_device(const std::string& system_root,
                                                const std::string& address);

// Returns the node that all entries of the list name; nothing if they differ, if one of them is not
// known, or if the list is empty.
std::optional<unsigned> common_node(const std::vector<std::optional<unsigned>>& nodes);

}  // namespace streamer
