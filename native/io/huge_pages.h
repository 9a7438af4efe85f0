// Huge pages for memory that is the caller's: a model's parameters on this machine, say.
//
// Memory that was never touched costs a fault for each page while it is filled; with huge pages,
// one for 2 MiB instead of 512. It is advice alone: it changes no byte, costs nothing where the
// memory was touched before, and a kernel that does not follow it costs only speed.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <vector>

namespace streamer {

struct MemoryRange {
  std::byte* begin = nullptr;
  std::size_t bytes = 0;
};

// Advises the steps of 2 MiB that lie wholly in the ranges, neighbours being taken as one: tensors
// that were allocated one after the other share the huge page in which they meet. A larger huge
// page never reaches beyond what was advised; those above 32 MiB are not asked for
// (base/page_sizes.h).
void advise_huge_pages(std::vector<MemoryRange> ranges);

// Has each huge page (each page, where the engine uses no huge ones) of fresh memory filled in by a
// fault of this program's, and not by one inside a read: the kernel takes the lock of the whole
// address space for the latter, and so every reader waits while a tensor's memory is mapped or
// given back (decision 0022). Writes a byte of each: only for memory of the engine's own that is
// about to be read to.
void touch_huge_pages(const iovec* vectors, std::size_t count);

}  // namespace streamer
