// Keeps a thread on one NUMA node.
//
// The kernel takes memory from the node of the thread that touches it first. A thread that moves to
// another node leaves behind its buffers and what it has filled.
//
// The processors that a thread may use are only ever narrowed: those that a container or numactl
// keeps from it stay so.
#pragma once

#include <optional>

#include "base/numa_nodes.h"

namespace streamer {

// What is left to a thread of the processors it is allowed: those of the node that is `wanted`, or,
// where nobody wants one or the thread may not run there, those of the node where it is, `here`.
// None where it is to be left as it is: it can run on one node only, or its node is not known.
Processors processors_of_one_node(const NumaNodes& nodes, const Processors& allowed,
                                  std::optional<unsigned> here, std::optional<unsigned> wanted);

// Binds the calling thread, and with it those that it starts. Where the system refuses, as a
// sandbox may, the thread runs on as it was: that costs speed alone.
void stay_on_one_node(const NumaNodes& nodes, std::optional<unsigned> wanted);

}  // namespace streamer
