#include "io/arena.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <thread>
#include <vector>

#include "base/forked_child_fixture.h"

namespace streamer {
namespace {

constexpr std::size_t kLarge = 3 * kHugePageBytes + 12345;

std::uintptr_t address_of(const Memory& memory) {
  return reinterpret_cast<std::uintptr_t>(memory.data());
}

TEST_CASE("an allocation is writable over its whole length") {
  for (const std::size_t size : {std::size_t{1}, std::size_t{4097}, kHugePageBytes, kLarge}) {
    const Memory memory = Arena::instance().allocate(size, 0);
    REQUIRE(memory.size() == size);
    std::memset(memory.data(), 0x5a, size);
    CHECK(memory.data()[size - 1] == std::byte{0x5a});
  }
}

TEST_CASE("a large allocation keeps the residue of its file offset within a page") {
  CHECK(address_of(Arena::instance().allocate(kLarge, 4096 * 7 + 1608)) % kPageBytes == 1608);
  CHECK(address_of(Arena::instance().allocate(kLarge, 4096 * 7 + 1601)) % 64 ==
        0);  // odd: no dtype fits
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

TEST_CASE("what is kept is given back before an allocation fails") {
  Arena& arena = Arena::instance();
  constexpr std::size_t kTooLarge = std::size_t{1} << 60;
  arena.join(2 * kTooLarge);
  { const Memory memory = arena.allocate(kLarge, 0); }
  CHECK(arena.stats().cached_bytes > 0);
  CHECK_THROWS_AS(arena.allocate(kTooLarge, 0), std::bad_alloc);
  CHECK(arena.stats().cached_bytes == 0);
  arena.leave(2 * kTooLarge);
}

TEST_CASE("a child forked while other threads use the arena can use it too") {
  Arena& arena = Arena::instance();
  arena.join(8 * kLarge);
  std::atomic<bool> is_over = false;
  std::vector<std::thread> others;
  for (int i = 0; i < 2; ++i) {
    others.emplace_back([&] {
      while (!is_over) arena.allocate(kLarge, 0);
    });
  }
  for (int i = 0; i < 100; ++i) {
    const int status =
        exit_status_of_child([&] { return arena.allocate(kLarge, 0).size() == kLarge ? 0 : 1; });
    CHECK(status == 0);
  }
  is_over = true;
  for (std::thread& other : others) other.join();
  arena.leave(8 * kLarge);
}

TEST_CASE("memory in the consumer's hands is never given to another tensor") {
  Arena& arena = Arena::instance();
  arena.join(8 * kLarge);
  Memory kept = arena.allocate(kLarge, 0);
  kept.hand_over();
  for (int i = 0; i < 4; ++i) CHECK(arena.allocate(kLarge, 0).data() != kept.data());
  arena.leave(8 * kLarge);
}

TEST_CASE("what is kept makes room for what it does not fit") {
  Arena& arena = Arena::instance();
  arena.join(4 * kLarge);
  {
    const Memory one = arena.allocate(kLarge, 0);
    const Memory two = arena.allocate(kLarge, 0);
  }
  REQUIRE(arena.stats().cached_bytes > 2 * kLarge);
  const Memory larger = arena.allocate(2 * kLarge, 0);
  CHECK(arena.stats().cached_bytes <= 2 * kLarge);  // with what is held: within the limit
  CHECK(arena.stats().cached_bytes > 0);            // and no more was given back
  arena.leave(4 * kLarge);
}

// Addresses that this process has mapped.
std::size_t mapped_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::size_t pages = 0;
  statm >> pages;
  return pages * kPageBytes;
}

TEST_CASE("mappings take no more addresses than they need, and none when they are gone") {
  constexpr std::size_t kNoise = kHugePageBytes / 4;  // of the heap
  constexpr std::size_t kCount = 16;                  // each begins elsewhere within a huge page
  const std::size_t before = mapped_bytes();
  {
    std::vector<Memory> held;
    for (std::size_t i = 0; i < kCount; ++i) {
      held.push_back(Arena::instance().allocate(kLarge + i * 32 * kPageBytes, 0));
    }
    std::size_t needed = 0;
    for (const Memory& memory : held) needed += memory.size() + kPageBytes;
    CHECK(mapped_bytes() - before <= needed + kNoise);
  }
  CHECK(mapped_bytes() <= before + kNoise);
}

}  // namespace
}  // namespace streamer
