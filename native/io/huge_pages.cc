#include "io/huge_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>

#include "base/page_sizes.h"

namespace streamer {
namespace {

// The largest gap between tensors that malloc mapped one after the other: a header of malloc, and
// the rest of a page.
std::size_t largest_gap() { return 2 * page_bytes(); }

void advise(const MemoryRange& range) {
  const auto begin = reinterpret_cast<std::uintptr_t>(range.begin);
  const std::size_t head = (kLargeStepBytes - begin % kLargeStepBytes) % kLargeStepBytes;
  if (range.bytes < head + kLargeStepBytes) return;
  madvise(range.begin + head, (range.bytes - head) / kLargeStepBytes * kLargeStepBytes,
          MADV_HUGEPAGE);
}

}  // namespace

void advise_huge_pages(std::vector<MemoryRange> ranges) {
  if (!uses_huge_pages()) return;
  std::sort(ranges.begin(), ranges.end(),
            [](const MemoryRange& a, const MemoryRange& b) { return a.begin < b.begin; });
  MemoryRange joined;
  for (const MemoryRange& range : ranges) {
    const std::byte* const end = joined.begin + joined.bytes;
    if (joined.bytes > 0 && range.begin <= end + largest_gap()) {
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
  const std::size_t step = touch_step_bytes();
  std::uintptr_t touched = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto begin = reinterpret_cast<std::uintptr_t>(vectors[i].iov_base);
    for (std::uintptr_t at = begin; at < begin + vectors[i].iov_len; at = (at / step + 1) * step) {
      if (at / step == touched) continue;
      touched = at / step;
      *reinterpret_cast<volatile std::byte*>(at) = std::byte{0};
    }
  }
}

}  // namespace streamer
