// The page sizes of this machine, and the sizes of the engine's own that look like them.
//
// Most kernels have pages of 4 KiB and huge pages of 2 MiB. Kernels of ARM servers may have pages
// of 16 or 64 KiB, and huge pages of 32 or 512 MiB. The system is asked once, when the library is
// loaded.
#pragma once

#include <cstddef>

namespace streamer {

// What reads past the page cache (O_DIRECT) need of offsets, addresses and lengths. It follows the
// largest sector of a disk, and not the page. A file system that needs more refuses the read, which
// then goes through the page cache.
inline constexpr std::size_t kDirectAlignmentBytes = 4096;

// The steps in which the engine lays out large memory, on every machine; less is small. It is the
// huge page of kernels with pages of 4 KiB. It does not grow with the huge page: a tensor of 3 MiB
// must not take 512 MiB.
inline constexpr std::size_t kLargeStepBytes = std::size_t{2} << 20;

struct PageSizes {
  std::size_t page_bytes = 4096;  // what the system maps, and takes back, at least
  std::size_t huge_page_bytes = kLargeStepBytes;
};

// Of a kernel with such pages: as much as one page of page table entries, 8 bytes each, points to.
constexpr std::size_t huge_page_bytes_for(std::size_t page_bytes) {
  return page_bytes / 8 * page_bytes;
}

const PageSizes& page_sizes();
inline std::size_t page_bytes() { return page_sizes().page_bytes; }

// Whether the engine's memory has huge pages: those of at most 32 MiB. A fault that sets 512 MiB to
// zero takes a tenth of a second, each reader that meets the same page makes one of its own, and no
// limit of memory would hold. With pages of 64 KiB there are few faults without huge ones.
bool uses_huge_pages();
// For madvise(2) on memory of the engine's own: neighbours in the address space become one mapping,
// in which the system may find room for a huge page that is larger than each. So it is told no,
// too.
int huge_page_advice();

// A mapping of so many bytes begins on a multiple of this.
std::size_t mapping_alignment(std::size_t bytes);

// So far apart are the bytes of fresh memory that are touched to fill all of it.
std::size_t touch_step_bytes();

// For the native tests alone, before any memory is taken: as on a kernel with such pages, which
// must be multiples of the real ones.
void replace_page_sizes(const PageSizes& sizes);

}  // namespace streamer
