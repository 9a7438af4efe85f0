#include "base/page_sizes.h"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/other_pages_fixture.h"

namespace streamer {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

TEST_CASE("the page size is the system's, or a multiple of it if a test sets one") {
  const auto real = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  CHECK(page_bytes() >= real);
  CHECK(page_bytes() % real == 0);
  CHECK(page_sizes().huge_page_bytes % kLargeStepBytes == 0);
}

TEST_CASE("a huge page is the memory that one page of page table entries points to") {
  CHECK(huge_page_bytes_for(4096) == 2 * kMiB);
  CHECK(huge_page_bytes_for(std::size_t{16} << 10) == 32 * kMiB);
  CHECK(huge_page_bytes_for(std::size_t{64} << 10) == 512 * kMiB);
}

TEST_CASE("huge pages are used up to 32 MiB, and larger ones are not") {
  struct Row {
    std::size_t page_bytes;
    int advice;
    std::size_t chunk_alignment;
    std::size_t touch_step;
  };
  for (const Row& row : {Row{4096, MADV_HUGEPAGE, 2 * kMiB, 2 * kMiB},
                         Row{std::size_t{16} << 10, MADV_HUGEPAGE, 32 * kMiB, 2 * kMiB},
                         Row{std::size_t{64} << 10, MADV_NOHUGEPAGE, 2 * kMiB, 64 << 10}}) {
    const OtherPages pages(row.page_bytes);
    CHECK(huge_page_advice() == row.advice);
    CHECK(mapping_alignment(64 * kMiB) == row.chunk_alignment);
    CHECK(mapping_alignment(kMiB * 1024) == row.chunk_alignment);
    CHECK(mapping_alignment(2 * kMiB) == 2 * kMiB);  // also for less than a huge page
    CHECK(touch_step_bytes() == row.touch_step);
  }
}

}  // namespace
}  // namespace streamer
