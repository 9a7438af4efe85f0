#include "io/arena_chunk.h"

#include <doctest/doctest.h>

#include <vector>

#include "io/arena.h"

namespace streamer {
namespace {

// Addresses without memory: a chunk only counts.
std::byte* const kBase = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 40);
constexpr std::size_t kBytes = 8 * kHugePageBytes;

std::size_t bytes_of(const std::vector<MemoryRange>& ranges) {
  std::size_t bytes = 0;
  for (const MemoryRange& range : ranges) bytes += range.bytes;
  return bytes;
}

TEST_CASE("tensors lie head to tail, small ones on cache lines and large ones as in their file") {
  ArenaChunk chunk(kBase, kBytes);
  CHECK(chunk.place(100, 1608) == kBase);
  CHECK(chunk.place(100, 1608) == kBase + 128);
  std::byte* const large = chunk.place(kHugePageBytes, 4096 * 7 + 1608);
  CHECK(large == kBase + 1608);
  CHECK(chunk.place(kHugePageBytes, 4096 * 7 + 1608 + kHugePageBytes) == large + kHugePageBytes);
  CHECK(chunk.place(kHugePageBytes, 1601) == kBase + 2 * kHugePageBytes + 1664);  // fits no dtype
}

TEST_CASE("what does not fit has no place, and what does has one to the last byte") {
  ArenaChunk chunk(kBase, kBytes);
  CHECK(chunk.place(kBytes + 1, 0) == nullptr);
  CHECK(chunk.place(kBytes - kHugePageBytes, 0) == kBase);
  CHECK(chunk.place(kHugePageBytes + 1, 0) == nullptr);
  CHECK(chunk.place(kHugePageBytes, 8) == nullptr);  // it would begin 8 bytes later
  CHECK(chunk.place(kHugePageBytes, 0) == kBase + kBytes - kHugePageBytes);
  CHECK(chunk.place(1, 0) == nullptr);
}

TEST_CASE("pages go back that no tensor needs, and none that a neighbour or the next one has") {
  ArenaChunk chunk(kBase, kBytes);
  std::byte* const first = chunk.place(10000, 0);   // pages 0, 1 and a part of 2
  std::byte* const second = chunk.place(10000, 0);  // from page 2 on, to a part of 4
  chunk.remove(first, 10000);
  CHECK(chunk.unused_bytes() == 10000);
  const std::vector<MemoryRange> ranges = chunk.pin_unused(first, 10000);
  REQUIRE(ranges.size() == 1);
  CHECK(ranges[0].begin == kBase);
  CHECK(ranges[0].bytes == 2 * kPageBytes);
  CHECK(chunk.pin_unused(first, 10000).empty());  // once
  chunk.remove(second, 10000);
  CHECK(bytes_of(chunk.pin_unused(second, 10000)) == 2 * kPageBytes);  // not the page for the next
  CHECK(chunk.place(10, 0) >= second + 10000);
}

TEST_CASE("a chunk is empty when its last tensor is gone and nothing is pinned") {
  ArenaChunk chunk(kBase, kBytes);
  CHECK(chunk.is_empty());
  std::byte* const only = chunk.place(kHugePageBytes, 0);
  CHECK_FALSE(chunk.is_empty());
  chunk.remove(only, kHugePageBytes);
  CHECK(chunk.is_empty());
  CHECK(chunk.is_whole());
  chunk.pin_unused(only, kHugePageBytes);
  CHECK_FALSE(chunk.is_empty());
  chunk.unpin();
  CHECK(chunk.is_empty());
  CHECK_FALSE(chunk.is_whole());
}

TEST_CASE("an empty chunk is filled again, and its touched pages count until it is") {
  ArenaChunk chunk(kBase, kBytes);
  chunk.remove(chunk.place(3 * kPageBytes, 0), 3 * kPageBytes);
  chunk.restart();
  CHECK(chunk.unused_bytes() == 3 * kPageBytes);
  CHECK(chunk.was_restarted());
  CHECK(chunk.place(kPageBytes, 0) == kBase);
  CHECK(chunk.unused_bytes() == 2 * kPageBytes);
  CHECK(chunk.pin_unused(kBase, kBytes).empty());  // the next tensor gets them
  chunk.retire();
  CHECK(chunk.place(1, 0) == nullptr);
  CHECK(bytes_of(chunk.pin_unused(kBase, kBytes)) == 2 * kPageBytes);
  CHECK(chunk.unused_bytes() == 0);
}

TEST_CASE("64 tensors of a page keep it until the last one is gone") {
  ArenaChunk chunk(kBase, kBytes);
  std::vector<std::byte*> tensors;
  for (int i = 0; i < 65; ++i) tensors.push_back(chunk.place(64, 0));
  for (int i = 0; i < 63; ++i) chunk.remove(tensors[static_cast<std::size_t>(i)], 64);
  CHECK(chunk.pin_unused(kBase, kBytes).empty());
  chunk.remove(tensors[63], 64);
  CHECK(bytes_of(chunk.pin_unused(tensors[63], 64)) == kPageBytes);
}

}  // namespace
}  // namespace streamer
