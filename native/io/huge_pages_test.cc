#include "io/huge_pages.h"

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

#include "io/arena.h"

namespace streamer {
namespace {

constexpr std::size_t kBytes = 16 * kLargeStepBytes;

// Untouched memory that starts on a huge page.
class Mapping {
 public:
  Mapping()
      : raw_(mmap(nullptr, kBytes + kLargeStepBytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    REQUIRE(raw_ != MAP_FAILED);
  }
  ~Mapping() { munmap(raw_, kBytes + kLargeStepBytes); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* at(std::size_t offset) const {
    const auto address = reinterpret_cast<std::uintptr_t>(raw_);
    return static_cast<std::byte*>(raw_) + (kLargeStepBytes - address % kLargeStepBytes) + offset;
  }

  // Returns the bytes for which the kernel has recorded the advice ("hg" in /proc/self/smaps).
  std::size_t advised_bytes() const {
    std::ifstream file("/proc/self/smaps");
    std::size_t advised = 0;
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with("VmFlags:") && line.find(" hg") != std::string::npos) {
        const auto first = reinterpret_cast<std::uintptr_t>(at(0));
        if (begin >= first && end <= first + kBytes) advised += end - begin;
      }
      if (line.find('-') > 16) continue;
      std::istringstream words(line);
      char dash = 0;
      words >> std::hex >> begin >> dash >> end;
    }
    return advised;
  }

 private:
  void* raw_;
};

// Returns the expected advised bytes: 0 if the engine uses no huge pages.
std::size_t where_used(std::size_t bytes) { return uses_huge_pages() ? bytes : 0; }

// A kernel without huge pages refuses the advice.
const bool kHasNoHugePages = !std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled").good();

TEST_CASE("the huge pages that lie wholly in a range are advised" *
          doctest::skip(kHasNoHugePages)) {
  const Mapping memory;
  advise_huge_pages({{memory.at(100), 3 * kLargeStepBytes}});
  CHECK(memory.advised_bytes() == where_used(2 * kLargeStepBytes));
}

TEST_CASE("neighbours share the huge page in which they meet" * doctest::skip(kHasNoHugePages)) {
  const Mapping memory;
  const std::size_t half = kLargeStepBytes / 2;
  advise_huge_pages({{memory.at(3 * half + 64), 5 * half}, {memory.at(0), 3 * half}});
  CHECK(memory.advised_bytes() == where_used(4 * kLargeStepBytes));
}

TEST_CASE("memory between distant ranges is not advised" * doctest::skip(kHasNoHugePages)) {
  const Mapping memory;
  advise_huge_pages(
      {{memory.at(0), kLargeStepBytes}, {memory.at(8 * kLargeStepBytes), kLargeStepBytes}});
  CHECK(memory.advised_bytes() == where_used(2 * kLargeStepBytes));
}

TEST_CASE("small ranges, nested ranges and an empty list are accepted") {
  const Mapping memory;
  advise_huge_pages({});
  advise_huge_pages({{memory.at(0), 10}, {memory.at(4), 2}, {nullptr, 0}});
  CHECK(memory.advised_bytes() == 0);
}

}  // namespace
}  // namespace streamer
