#include "io/arena.h"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <iterator>
#include <thread>
#include <vector>

#include "base/forked_child_fixture.h"
#include "base/other_pages_fixture.h"

namespace streamer {
namespace {

constexpr std::size_t kLarge = kOwnMappingBytes + 12345;      // has its own mapping
constexpr std::size_t kMiddle = 3 * kLargeStepBytes + 12345;  // several fit in a chunk

std::uintptr_t address_of(const Memory& memory) {
  return reinterpret_cast<std::uintptr_t>(memory.data());
}

TEST_CASE("an allocation is writable over its whole length") {
  for (const std::size_t size :
       {std::size_t{1}, std::size_t{4097}, kLargeStepBytes, kMiddle, kLarge}) {
    const Memory memory = Arena::instance().allocate(size, 0);
    REQUIRE(memory.size() == size);
    std::memset(memory.data(), 0x5a, size);
    CHECK(memory.data()[size - 1] == std::byte{0x5a});
  }
}

TEST_CASE("a large allocation keeps the residue of its file offset for direct reads") {
  for (const std::size_t size : {kMiddle, kLarge}) {
    CHECK(address_of(Arena::instance().allocate(size, 4096 * 7 + 1608)) % kDirectAlignmentBytes ==
          1608);
    // An odd offset fits no dtype.
    const Memory odd = Arena::instance().allocate(size, 4096 * 7 + 1601);
    CHECK(address_of(odd) % 64 == 0);
  }
}

TEST_CASE("a mapping begins at a multiple of the huge page size") {
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  for (const std::size_t page : {std::size_t{4096}, std::size_t{16} << 10, std::size_t{64} << 10}) {
    const OtherPages pages(page);
    std::byte* const mapping = map_huge(64 * kMiB);
    REQUIRE(mapping != nullptr);
    CHECK(reinterpret_cast<std::uintptr_t>(mapping) % mapping_alignment(64 * kMiB) == 0);
    mapping[64 * kMiB - 1] = std::byte{1};
    munmap(mapping, 64 * kMiB);
  }
}

TEST_CASE("size zero needs no memory") {
  CHECK(Arena::instance().allocate(0, 8).data() == nullptr);
}

TEST_CASE("held bytes are counted until they are handed over") {
  Arena& arena = Arena::instance();
  const std::size_t before = arena.stats().held_bytes;
  Memory memory = arena.allocate(1000, 0);
  CHECK(arena.stats().held_bytes == before + 1000);
  memory.hand_over();
  memory.hand_over();
  CHECK(arena.stats().held_bytes == before);
}

TEST_CASE("freed mappings are reused while a session runs and returned when it ends") {
  Arena& arena = Arena::instance();
  arena.join(4 * kLarge);
  const std::uint64_t reused = arena.stats().reused;
  std::byte* first = nullptr;
  {
    const Memory memory = arena.allocate(kLarge, 0);
    first = memory.data();
  }
  CHECK(arena.stats().cached_bytes > 0);
  const Memory again = arena.allocate(kLarge, 0);
  CHECK(again.data() == first);
  CHECK(arena.stats().reused == reused + 1);
  { const Memory other = arena.allocate(kLarge, 0); }
  arena.leave(4 * kLarge);
  CHECK(arena.stats().cached_bytes == 0);
}

TEST_CASE("nothing is kept without a session, and never more than the limit") {
  Arena& arena = Arena::instance();
  { const Memory memory = arena.allocate(kLarge, 0); }
  CHECK(arena.stats().cached_bytes == 0);
  arena.join(kLarge / 2);
  { const Memory memory = arena.allocate(kLarge, 0); }
  CHECK(arena.stats().cached_bytes == 0);
  arena.leave(kLarge / 2);
}

TEST_CASE("kept memory is returned before an allocation fails") {
  Arena& arena = Arena::instance();
  constexpr std::size_t kTooLarge = std::size_t{1} << 60;
  arena.join(2 * kTooLarge);
  { const Memory memory = arena.allocate(kLarge, 0); }
  CHECK(arena.stats().cached_bytes > 0);
  CHECK_THROWS_AS(arena.allocate(kTooLarge, 0), std::bad_alloc);
  CHECK(arena.stats().cached_bytes == 0);
  arena.leave(2 * kTooLarge);
}

TEST_CASE("tensors of one file lie in memory as in the file, and share huge pages") {
  Arena& arena = Arena::instance();
  const Memory first = arena.allocate(kLargeStepBytes + 4096 * 3 + 8, 1608);
  const Memory second = arena.allocate(kLargeStepBytes, 1608 + first.size());
  CHECK(second.data() == first.data() + first.size());
}

TEST_CASE("chunks are larger under a high limit, and small under a low one") {
  Arena& arena = Arena::instance();
  for (const std::size_t limit : {8 * kLargeChunkBytes, 8 * kLargeChunkBytes - 8}) {
    arena.join(limit);
    std::vector<Memory> all;
    std::size_t begun = 0;  // chunks after the first
    for (std::size_t i = 0; i < kLargeChunkBytes / (kMiddle + kDirectAlignmentBytes); ++i) {
      all.push_back(arena.allocate(kMiddle, 0));
      const bool is_behind =
          i == 0 || address_of(all[i]) - address_of(all[i - 1]) <= kMiddle + kDirectAlignmentBytes;
      if (!is_behind) ++begun;
    }
    CHECK(begun == (limit == 8 * kLargeChunkBytes ? 0 : 4));
    all.clear();
    arena.leave(limit);
    CHECK(arena.stats().cached_bytes == 0);
  }
}

TEST_CASE("a chunk whose tensors are all freed is filled again while a session runs") {
  Arena& arena = Arena::instance();
  arena.join(4 * kChunkBytes);
  const std::uint64_t reused = arena.stats().reused;
  std::byte* first = nullptr;
  {
    std::vector<Memory> all;
    for (std::size_t i = 0; i < 2 * (kChunkBytes / kMiddle); ++i) {
      all.push_back(arena.allocate(kMiddle, 0));
      if (first == nullptr) first = all[0].data();
    }
  }
  CHECK(arena.stats().cached_bytes > kChunkBytes);
  std::vector<Memory> again;
  for (std::size_t i = 0; i < 2 * (kChunkBytes / kMiddle); ++i) {
    again.push_back(arena.allocate(kMiddle, 0));
  }
  CHECK(arena.stats().reused > reused);
  again.clear();
  arena.leave(4 * kChunkBytes);
  CHECK(arena.stats().cached_bytes == 0);
}

// The page size of the system, even if a test sets another one for the engine.
std::size_t real_page_bytes() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

std::size_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::size_t mapped = 0;
  std::size_t resident = 0;
  statm >> mapped >> resident;
  return resident * real_page_bytes();
}

std::size_t whole_page_bytes(const std::byte* data, std::size_t size) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  return (address + size) / page_bytes() * page_bytes() - round_up(address, page_bytes());
}

// Returns the resident bytes of the pages that lie wholly in these ranges. The resident set of the
// process would also count the memory of a sanitizer.
std::size_t resident_bytes(const std::byte* data, std::size_t size) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t begin = round_up(address, page_bytes());
  const std::size_t bytes = whole_page_bytes(data, size);
  std::vector<unsigned char> pages(bytes / real_page_bytes());
  REQUIRE(mincore(reinterpret_cast<void*>(begin), bytes, pages.data()) == 0);
  return real_page_bytes() *
         static_cast<std::size_t>(std::count_if(pages.begin(), pages.end(),
                                                [](unsigned char page) { return page & 1; }));
}

TEST_CASE(
    "the pages of a tensor are returned when it is freed, although its neighbours are in use") {
  Arena& arena = Arena::instance();
  std::vector<Memory> all;
  std::vector<std::byte*> places;
  for (int i = 0; i < 32; ++i) {
    all.push_back(arena.allocate(kMiddle, 0));
    places.push_back(all.back().data());
    std::memset(places.back(), i, kMiddle);
  }
  for (std::size_t i = 0; i < 32; ++i) {
    CHECK(resident_bytes(places[i], kMiddle) == whole_page_bytes(places[i], kMiddle));
    if (i % 2 != 0) all[i] = Memory();
  }
  for (std::size_t i = 0; i < 32; ++i) {
    if (i % 2 != 0) {
      CHECK(resident_bytes(places[i], kMiddle) == 0);
    } else {
      CHECK(all[i].data()[0] == std::byte(i));
      CHECK(all[i].data()[kMiddle - 1] == std::byte(i));
    }
  }
}

TEST_CASE("tensors that outlive their session make room for tensors of later sessions") {
  Arena& arena = Arena::instance();
  std::vector<Memory> kept;
  const std::size_t before = resident_bytes();
  for (int session = 0; session < 200; ++session) {
    arena.join(kChunkBytes);
    kept.push_back(arena.allocate(1000, 0));
    std::memset(kept.back().data(), session, 1000);
    { const Memory gone = arena.allocate(kMiddle, 0); }
    kept.back().hand_over();
    arena.leave(kChunkBytes);
  }
  CHECK(resident_bytes() - before < 20 * kLargeStepBytes);  // less than one huge page for each
  for (std::size_t i = 0; i < kept.size(); ++i) CHECK(kept[i].data()[999] == std::byte(i));
}

TEST_CASE("memory that many threads allocate and free is never shared") {
  Arena& arena = Arena::instance();
  arena.join(2 * kChunkBytes);
  std::vector<std::thread> threads;
  std::atomic<bool> is_wrong = false;
  for (int number = 0; number < 4; ++number) {
    threads.emplace_back([&, number] {
      std::vector<Memory> held(16);
      std::size_t size = 100;
      for (std::size_t i = 0; i < 3000; ++i) {
        Memory& memory = held[i % held.size()];
        const std::byte mark{static_cast<unsigned char>(number * 16 + 1)};
        if (memory.size() > 0) {
          is_wrong =
              is_wrong || memory.data()[0] != mark || memory.data()[memory.size() - 1] != mark;
        }
        size = (size * 31 + 17) % (i % 50 == 0 ? kLarge : kLargeStepBytes + 999) + 1;
        memory = arena.allocate(size, i * 8);
        memory.data()[0] = memory.data()[size - 1] = mark;
        if (i % 3 == 0) memory.hand_over();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_FALSE(is_wrong);
  arena.leave(2 * kChunkBytes);
  CHECK(arena.stats().cached_bytes == 0);
}

TEST_CASE("a child forked while other threads use the arena can use it too") {
  Arena& arena = Arena::instance();
  arena.join(8 * kLarge);
  std::atomic<bool> is_over = false;
  std::vector<std::thread> others;
  for (int i = 0; i < 2; ++i) {
    others.emplace_back([&] {
      while (!is_over) {
        arena.allocate(kLarge, 0);
        arena.allocate(kMiddle, 0);
      }
    });
  }
  for (int i = 0; i < 100; ++i) {
    const int status =
        exit_status_of_child([&] { return arena.allocate(kMiddle, 0).size() == kMiddle ? 0 : 1; });
    CHECK(status == 0);
  }
  is_over = true;
  for (std::thread& other : others) other.join();
  arena.leave(8 * kLarge);
}

TEST_CASE("memory that was handed over to the consumer is never given to another tensor") {
  Arena& arena = Arena::instance();
  arena.join(8 * kLarge);
  Memory kept = arena.allocate(kLarge, 0);
  kept.hand_over();
  for (int i = 0; i < 4; ++i) CHECK(arena.allocate(kLarge, 0).data() != kept.data());
  arena.leave(8 * kLarge);
}

std::size_t mappings_of_process() {
  std::ifstream maps("/proc/self/maps");
  return static_cast<std::size_t>(std::count(std::istreambuf_iterator<char>(maps), {}, '\n'));
}

TEST_CASE("prepared memory is allocated without a system call") {
  Arena& arena = Arena::instance();
  arena.join(8 * kLarge);
  for (const std::size_t size : {kMiddle, kLarge, std::size_t{4097}}) {
    std::vector<Memory> others;  // until the current chunk is full
    while (arena.is_prepared(size, 8)) others.push_back(arena.allocate(size, 8));
    const std::uint64_t reused = arena.stats().reused;
    arena.prepare(size, 8);
    CHECK(arena.is_prepared(size, 8));
    const std::size_t mappings = mappings_of_process();
    const Memory memory = arena.allocate(size, 8);
    CHECK(mappings_of_process() == mappings);
    CHECK(memory.size() == size);
    CHECK(arena.stats().reused == reused);  // its pages were mapped for it
  }
  arena.leave(8 * kLarge);
  CHECK(arena.stats().cached_bytes == 0);
}

TEST_CASE("nothing stays prepared without a session") {
  Arena& arena = Arena::instance();
  const std::size_t before = mappings_of_process();
  arena.prepare(kLarge, 0);
  CHECK(mappings_of_process() == before);
  arena.join(4 * kLarge);
  arena.prepare(kLarge, 0);
  CHECK(arena.is_prepared(kLarge, 0));
  arena.leave(4 * kLarge);
  CHECK_FALSE(arena.is_prepared(kLarge, 0));
  CHECK(arena.stats().cached_bytes == 0);
}

TEST_CASE("kept memory is evicted for an allocation that it does not fit") {
  Arena& arena = Arena::instance();
  arena.join(4 * kLarge);
  {
    const Memory one = arena.allocate(kLarge, 0);
    const Memory two = arena.allocate(kLarge, 0);
  }
  REQUIRE(arena.stats().cached_bytes > 2 * kLarge);
  const Memory larger = arena.allocate(2 * kLarge, 0);
  // Within the limit, together with the held bytes.
  CHECK(arena.stats().cached_bytes <= 2 * kLarge);
  CHECK(arena.stats().cached_bytes > 0);  // no more was returned than necessary
  arena.leave(4 * kLarge);
}

// Returns the size of the mapped address space of this process.
std::size_t mapped_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::size_t pages = 0;
  statm >> pages;
  return pages * real_page_bytes();
}

TEST_CASE("mappings use no more addresses than necessary, and none after they are freed") {
  constexpr std::size_t kNoise = kLargeStepBytes / 4;  // for the heap
  constexpr std::size_t kCount = 16;  // each begins at another place in a huge page
  const std::size_t before = mapped_bytes();
  {
    std::vector<Memory> held;
    for (std::size_t i = 0; i < kCount; ++i) {
      held.push_back(Arena::instance().allocate(kLarge + i * 32 * page_bytes(), 0));
    }
    std::size_t needed = 0;
    for (const Memory& memory : held) needed += memory.size() + kLargeStepBytes;
    CHECK(mapped_bytes() - before <= needed + kNoise);
  }
  CHECK(mapped_bytes() <= before + kNoise);
}

}  // namespace
}  // namespace streamer
