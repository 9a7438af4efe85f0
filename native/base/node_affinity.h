// Keeps a thread on one NUMA node.
//
// The kernel takes memory from the node of the thread that touches it first. If a thread moves to
// another node, its buffers and the memory that it filled stay behind.
//
// The set of processors that a thread may use only shrinks: processors that a container or numactl
// excludes stay excluded.
#pragma once

#include <optional>

#include "base/numa_nodes.h"

namespace streamer {

// Returns the part of the `allowed` processors that a thread should keep: those on the node
// `wanted`. If no node is wanted, or the thread may not run on that node, it is the part on the
// node of the processor `here`. The result is empty if the thread should stay as it is: it can run
// on one node only, or its node is not known.
Processors processors_of_one_node(const NumaNodes& nodes, const Processors& allowed,
                                  std::optional<unsigned> here, std::optional<unsigned> wanted);

// Binds the calling thread, and the threads that it starts later, to one node. If the system
// refuses, as a sandbox may, the thread stays as it was, which costs only speed.
void stay_on_one_node(const NumaNodes& nodes, std::optional<unsigned> wanted);

}  // namespace streamer
