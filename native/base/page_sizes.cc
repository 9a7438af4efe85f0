#include "base/page_sizes.h"

#include <sys/mman.h>
#include <unistd.h>

#include <fstream>

namespace streamer {
namespace {

constexpr std::size_t kLargestUsedBytes = std::size_t{32} << 20;

PageSizes read_page_sizes() {
  PageSizes sizes;
  if (const long reported = sysconf(_SC_PAGESIZE); reported > 0) {
    sizes.page_bytes = static_cast<std::size_t>(reported);
  }
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size");
  if (!(file >> sizes.huge_page_bytes) || sizes.huge_page_bytes < kLargeStepBytes) {
    sizes.huge_page_bytes = huge_page_bytes_for(sizes.page_bytes);
  }
  return sizes;
}

PageSizes current = read_page_sizes();

}  // namespace

const PageSizes& page_sizes() { return current; }

bool uses_huge_pages() { return current.huge_page_bytes <= kLargestUsedBytes; }

int huge_page_advice() { return uses_huge_pages() ? MADV_HUGEPAGE : MADV_NOHUGEPAGE; }

std::size_t mapping_alignment(std::size_t bytes) {
  const bool may_hold_one = uses_huge_pages() && bytes >= current.huge_page_bytes;
  return may_hold_one ? current.huge_page_bytes : kLargeStepBytes;
}

std::size_t touch_step_bytes() { return uses_huge_pages() ? kLargeStepBytes : current.page_bytes; }

void replace_page_sizes(const PageSizes& sizes) { current = sizes; }

}  // namespace streamer
