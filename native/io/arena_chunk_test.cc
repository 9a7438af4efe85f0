#include "io/arena_chunk.h"

#include <doctest/doctest.h>

#include <vector>

#include "io/arena.h"

namespace streamer {
namespace {

// Addresses without memory, because a chunk only does the bookkeeping.
std::byte* const kBase = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 40);
constexpr std::size_t kBytes = 8 * kLargeStepBytes;

std::size_t bytes_of(const std::vector<MemoryRange>& ranges) {
  std::size_t bytes = 0;
  for (const MemoryRange& range : ranges) bytes += range.bytes;
  return bytes;
}

TEST_CASE("small tensors are placed on cache lines, large ones with the residue of their file") {
  ArenaChunk chunk(kBase, kBytes);
  CHECK(chunk.place(100, 1608) == kBase);
  CHECK(chunk.place(100, 1608) == kBase + 128);
  std::byte* const large = chunk.place(kLargeStepBytes, 4096 * 7 + 1608);
  CHECK(large == kBase + 1608);
  CHECK(chunk.place(kLargeStepBytes, 4096 * 7 + 1608 + kLargeStepBytes) == large + kLargeStepBytes);
  // An odd offset fits no dtype.
  CHECK(chunk.place(kLargeStepBytes, 1601) == kBase + 2 * kLargeStepBytes + 1664);
}

TEST_CASE("a tensor that does not fit gets no place, and one that just fits gets the last bytes") {
  ArenaChunk chunk(kBase, kBytes);
  CHECK(chunk.place(kBytes + 1, 0) == nullptr);
  CHECK(chunk.place(kBytes - kLargeStepBytes, 0) == kBase);
  CHECK(chunk.place(kLargeStepBytes + 1, 0) == nullptr);
  // The address would be 8 bytes higher, which is too far.
  CHECK(chunk.place(kLargeStepBytes, 8) == nullptr);
  CHECK(chunk.place(kLargeStepBytes, 0) == kBase + kBytes - kLargeStepBytes);
  CHECK(chunk.place(1, 0) == nullptr);
}

TEST_CASE("a page is returned only if neither a neighbour nor the next tensor needs it") {
  ArenaChunk chunk(kBase, kBytes);
  const std::size_t size = 2 * page_bytes() + 1808;
  std::byte* const first = chunk.place(size, 0);   // pages 0, 1 and a part of 2
  std::byte* const second = chunk.place(size, 0);  // from page 2 to a part of page 4
  chunk.remove(first, size);
  CHECK(chunk.unused_bytes() == size);
  const std::vector<MemoryRange> ranges = chunk.pin_unused(first, size);
  REQUIRE(ranges.size() == 1);
  CHECK(ranges[0].begin == kBase);
  CHECK(ranges[0].bytes == 2 * page_bytes());
  CHECK(chunk.pin_unused(first, size).empty());  // they were already pinned
  chunk.remove(second, size);
  // The page in which the next tensor begins is not returned.
  CHECK(bytes_of(chunk.pin_unused(second, size)) == 2 * page_bytes());
  CHECK(chunk.place(10, 0) >= second + size);
}

TEST_CASE("a chunk is empty when its last tensor is freed and nothing is pinned") {
  ArenaChunk chunk(kBase, kBytes);
  CHECK(chunk.is_empty());
  std::byte* const only = chunk.place(kLargeStepBytes, 0);
  CHECK_FALSE(chunk.is_empty());
  chunk.remove(only, kLargeStepBytes);
  CHECK(chunk.is_empty());
  CHECK(chunk.is_whole());
  chunk.pin_unused(only, kLargeStepBytes);
  CHECK_FALSE(chunk.is_empty());
  chunk.unpin();
  CHECK(chunk.is_empty());
  CHECK_FALSE(chunk.is_whole());
}

TEST_CASE("an empty chunk is filled again, and its touched pages count as unused until then") {
  ArenaChunk chunk(kBase, kBytes);
  chunk.remove(chunk.place(3 * page_bytes(), 0), 3 * page_bytes());
  chunk.restart();
  CHECK(chunk.unused_bytes() == 3 * page_bytes());
  CHECK(chunk.was_restarted());
  CHECK(chunk.place(page_bytes(), 0) == kBase);
  CHECK(chunk.unused_bytes() == 2 * page_bytes());
  CHECK(chunk.pin_unused(kBase, kBytes).empty());  // the next tensor gets these pages
  chunk.retire();
  CHECK(chunk.place(1, 0) == nullptr);
  CHECK(bytes_of(chunk.pin_unused(kBase, kBytes)) == 2 * page_bytes());
  CHECK(chunk.unused_bytes() == 0);
}

TEST_CASE("a page stays until the last of its tensors is freed") {
  ArenaChunk chunk(kBase, kBytes);
  const std::size_t count = page_bytes() / 64;
  std::vector<std::byte*> tensors;
  for (std::size_t i = 0; i < count + 1; ++i) tensors.push_back(chunk.place(64, 0));
  for (std::size_t i = 0; i < count - 1; ++i) chunk.remove(tensors[i], 64);
  CHECK(chunk.pin_unused(kBase, kBytes).empty());
  chunk.remove(tensors[count - 1], 64);
  CHECK(bytes_of(chunk.pin_unused(tensors[count - 1], 64)) == page_bytes());
}

}  // namespace
}  // namespace streamer
