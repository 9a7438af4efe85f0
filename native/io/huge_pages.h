// Huge pages for memory of the caller, such as a model's parameters in host memory.
//
// Untouched memory costs a fault for each page while it is filled: with huge pages, one fault for 2
// MiB instead of 512. This is only advice: it changes no byte, and costs nothing if the memory was
// touched before. A kernel that ignores it costs only speed.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <vector>

namespace streamer {

struct MemoryRange {
  std::byte* begin = nullptr;
  std::size_t bytes = 0;
};

// Gives the advice for the steps of 2 MiB that lie wholly in the ranges. Neighbouring ranges count
// as one, so tensors that were allocated one after the other share the huge page in which they
// meet. A larger huge page never reaches beyond the advised memory; huge pages above 32 MiB are not
// used (base/page_sizes.h).
void advise_huge_pages(std::vector<MemoryRange> ranges);

// Touches each huge page of fresh memory, or each page if the engine uses no huge ones, before a
// read fills it. Otherwise the page fault happens inside the read, for which the kernel takes the
// lock of the whole address space. All readers then wait while the memory of a tensor is mapped or
// given back (decision 0022). Writes one byte to each page, so the memory must be the engine's own,
// and about to be filled.
void touch_huge_pages(const iovec* vectors, std::size_t count);

}  // namespace streamer
