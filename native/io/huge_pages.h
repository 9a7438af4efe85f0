// Huge pages for memory that is the caller's: a model's parameters on this machine, say.
//
// Memory that was never touched costs a fault for each page while it is filled; with huge pages,
// one for 2 MiB instead of 512. It is advice alone: it changes no byte, costs nothing where the
// memory was touched before, and a kernel that does not follow it costs only speed.
#pragma once

#include <cstddef>
#include <vector>

namespace streamer {

struct MemoryRange {
  std::byte* begin = nullptr;
  std::size_t bytes = 0;
};

// Advises the huge pages that lie wholly in the ranges, neighbours being taken as one: tensors that
// were allocated one after the other share the huge page in which they meet.
void advise_huge_pages(std::vector<MemoryRange> ranges);

}  // namespace streamer
