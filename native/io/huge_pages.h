// Huge pages for memory of the caller, such as a model's parameters in host memory.
//
// Untouched memory costs a page fault for each page while it is filled. With huge pages, 2 MiB cost
// one fault instead of 512. This is only advice: it changes no byte, and costs nothing if the
// memory was touched before. If a kernel ignores the advice, only speed is lost.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <vector>

namespace streamer {

struct MemoryRange {
  std::byte* begin = nullptr;
  std::size_t bytes = 0;
};

// Advises the kernel on all steps of 2 MiB that lie wholly in the ranges. Neighbouring ranges count
// as one range, so tensors that were allocated one after the other share the huge page at their
// border. A larger huge page never reaches beyond the advised memory; huge pages above 32 MiB are
// not used (base/page_sizes.h).
void advise_huge_pages(std::vector<MemoryRange> ranges);

// Touches each huge page of fresh memory before a read fills it; without huge pages, touches each
// page. Otherwise the page fault happens inside the read, and the kernel takes the lock of the
// whole address space for it. All readers then wait while the memory of a tensor is mapped or
// returned (decision 0022). Writes one byte to each page, so the memory must be the engine's own,
// and about to be filled.
void touch_huge_pages(const iovec* vectors, std::size_t count);

}  // namespace streamer
