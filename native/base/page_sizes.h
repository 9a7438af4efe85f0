// The page sizes of this machine, and the engine's own sizes that are easily mistaken for them.
//
// Most kernels have pages of 4 KiB and huge pages of 2 MiB. Kernels of ARM servers may have pages
// of 16 or 64 KiB, and huge pages of 32 or 512 MiB. The sizes are read from the system once, when
// the library is loaded.
#pragma once

#include <cstddef>

namespace streamer {

// The alignment of offsets, addresses and lengths that reads past the page cache (O_DIRECT) need.
// It is the largest sector size of a disk, not the page size. A file system that needs a larger
// alignment refuses the read, which then goes through the page cache.
inline constexpr std::size_t kDirectAlignmentBytes = 4096;

// The step in which the engine lays out large memory, on every machine. Smaller memory counts as
// small. The step equals the huge page of kernels with pages of 4 KiB. It does not grow with the
// huge page: a tensor of 3 MiB must not take 512 MiB.
inline constexpr std::size_t kLargeStepBytes = std::size_t{2} << 20;

struct PageSizes {
  std::size_t page_bytes = 4096;  // the smallest unit that the system maps and unmaps
  std::size_t huge_page_bytes = kLargeStepBytes;
};

// Returns the huge page size of a kernel with pages of this size: the memory that one page full of
// page table entries, 8 bytes each, points to.
constexpr std::size_t huge_page_bytes_for(std::size_t page_bytes) {
  return page_bytes / 8 * page_bytes;
}

const PageSizes& page_sizes();
inline std::size_t page_bytes() { return page_sizes().page_bytes; }

// Whether the engine's memory uses huge pages: yes up to 32 MiB. A page fault that zeroes 512 MiB
// takes a tenth of a second. Every reader that faults on the same page zeroes a page of its own, so
// no memory limit would hold. With pages of 64 KiB, few faults occur even without huge pages.
bool uses_huge_pages();
// Returns the advice for madvise(2) on memory that the engine maps. If huge pages are not used, the
// advice must forbid them: neighbouring mappings merge into one, and the system may place a huge
// page in it that is larger than each of them.
int huge_page_advice();

// Returns the alignment for the start of a mapping of this size.
std::size_t mapping_alignment(std::size_t bytes);

// Returns the distance between the bytes that must be touched to make the system fill in a fresh
// mapping completely.
std::size_t touch_step_bytes();

// For the native tests only, before any memory is allocated. The sizes must be multiples of the
// real ones.
void replace_page_sizes(const PageSizes& sizes);

}  // namespace streamer
