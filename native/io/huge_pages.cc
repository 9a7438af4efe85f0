#include "io/huge_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>

#include "io/arena.h"

namespace streamer {
namespace {

// Between tensors that malloc mapped one after the other: its header, and the rest of a page.
constexpr std::size_t kLargestGap = 2 * kPageBytes;

void advise(const MemoryRange& range) {
  const auto begin = reinterpret_cast<std::uintptr_t>(range.begin);
  const std::size_t head = (kHugePageBytes - begin % kHugePageBytes) % kHugePageBytes;
  if (range.bytes < head + kHugePageBytes) return;
  madvise(range.begin + head, (range.bytes - head) / kHugePageBytes * kHugePageBytes,
          MADV_HUGEPAGE);
}

}  // namespace

void advise_huge_pages(std::vector<MemoryRange> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const MemoryRange& a, const MemoryRange& b) { return a.begin < b.begin; });
  MemoryRange joined;
  for (const MemoryRange& range : ranges) {
    const std::byte* const end = joined.begin + joined.bytes;
    if (joined.bytes > 0 && range.begin <= end + kLargestGap) {
      const auto reach = static_cast<std::size_t>(range.begin - joined.begin) + range.bytes;
      joined.bytes = std::max(joined.bytes, reach);
    } else {
      advise(joined);
      joined = range;
    }
  }
  advise(joined);
}

void touch_huge_pages(const iovec* vectors, std::size_t count) {
  std::uintptr_t touched = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto begin = reinterpret_cast<std::uintptr_t>(vectors[i].iov_base);
    for (std::uintptr_t at = begin; at < begin + vectors[i].iov_len;
         at = (at / kHugePageBytes + 1) * kHugePageBytes) {
      if (at / kHugePageBytes == touched) continue;
      touched = at / kHugePageBytes;
      *reinterpret_cast<volatile std::byte*>(at) = std::byte{0};
    }
  }
}

}  // namespace streamer
