#include "schedule/block_cutter.h"

#include <doctest/doctest.h>

#include <random>
#include <vector>

namespace streamer {
namespace {

// Gives the items targets in one buffer of the object's size, so that the place of each segment can
// be checked.
class Fixture {
 public:
  Fixture(std::vector<Item> given, std::vector<Span> given_spans, std::uint64_t given_block_bytes)
      : items(std::move(given)),
        object(1 << 16),
        block_bytes(given_block_bytes),
        cutter(items, std::move(given_spans), [this](std::uint32_t) { return block_bytes; }) {}

  std::optional<Block> next(bool accept_short = true) {
    return cutter.next(
        [this](std::uint32_t item) {
          if (budget < items[item].size()) return false;
          budget -= items[item].size();
          items[item].target = &object[items[item].begin];
          return true;
        },
        accept_short);
  }

  // Returns the place in the buffer of a byte of an item, whose runs lie one after the other.
  static std::uint64_t place_of(const Item& item, std::uint64_t at) {
    const std::uint64_t gaps = item.run == 0 ? 0 : (at - item.begin) / item.stride;
    return at - gaps * (item.stride - item.run);
  }

  std::vector<Item> items;
  std::vector<std::byte> object;
  std::uint64_t budget = UINT64_MAX;
  std::uint64_t block_bytes;
  BlockCutter cutter;
};

TEST_CASE("a large item takes many equal blocks that end at multiples of the block size") {
  Fixture fixture({{0, 100, 1000}}, {{0, 100, 1000, 0, 1}}, 256);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> cuts;
  while (const auto block = fixture.next()) cuts.emplace_back(block->begin, block->end);
  CHECK(cuts == decltype(cuts){{100, 256}, {256, 512}, {512, 768}, {768, 1000}});
  CHECK(fixture.cutter.is_exhausted());
}

TEST_CASE("the block size may change between two blocks") {
  Fixture fixture({{0, 100, 1000}}, {{0, 100, 1000, 0, 1}}, 256);
  fixture.next();
  fixture.block_bytes = 512;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> cuts;
  while (const auto block = fixture.next()) cuts.emplace_back(block->begin, block->end);
  CHECK(cuts == decltype(cuts){{256, 512}, {512, 1000}});
}

TEST_CASE("small items share a block, and the bytes of the gap between them are dropped") {
  Fixture fixture({{0, 10, 20}, {0, 20, 20}, {0, 25, 40}}, {{0, 10, 40, 0, 3}}, 1024);
  const auto block = fixture.next();
  REQUIRE(block);
  REQUIRE(block->destinations.size() == 3);
  CHECK(block->destinations[0].item == 0);
  CHECK(block->destinations[1].target == nullptr);
  CHECK(block->destinations[1].size == 5);
  CHECK(block->destinations[2].item == 2);
  CHECK(block->destinations[2].target == &fixture.object[25]);
  CHECK_FALSE(fixture.next());
}

TEST_CASE("if memory is short, a block ends with the last item that has memory") {
  Fixture fixture({{0, 0, 100}, {0, 100, 200}}, {{0, 0, 200, 0, 2}}, 1024);
  fixture.budget = 150;
  const auto first = fixture.next();
  REQUIRE(first);
  CHECK(first->end == 100);
  CHECK_FALSE(fixture.next());
  fixture.budget = 100;
  CHECK(fixture.next()->begin == 100);
}

TEST_CASE("a short block is held back while other blocks are in flight") {
  Fixture fixture({{0, 0, 100}, {0, 100, 2000}}, {{0, 0, 2000, 0, 2}}, 1024);
  fixture.budget = 150;
  CHECK_FALSE(fixture.next(false));
  fixture.budget = 1900;
  CHECK(fixture.next(false)->end == 1024);
}

TEST_CASE("a block never starts with bytes that belong to no item") {
  Fixture fixture({{0, 0, 256}, {0, 300, 400}}, {{0, 0, 400, 0, 2}}, 256);
  CHECK(fixture.next()->end == 256);
  CHECK(fixture.next()->begin == 300);
}

TEST_CASE("the runs of an item are put one after the other, and no block starts between them") {
  Fixture fixture({{0, 10, 65, nullptr, kHost, 5, 25}}, {{0, 10, 65, 0, 1}}, 16);
  CHECK(fixture.items[0].size() == 15);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> cuts;
  std::vector<std::byte*> targets;
  while (const auto block = fixture.next()) {
    cuts.emplace_back(block->begin, block->end);
    for (const Segment& each : block->destinations) {
      if (each.target != nullptr) targets.push_back(each.target);
    }
  }
  CHECK(cuts == decltype(cuts){{10, 16}, {35, 48}, {60, 64}, {64, 65}});
  CHECK(targets == decltype(targets){&fixture.object[10], &fixture.object[15], &fixture.object[20],
                                     &fixture.object[24]});
}

TEST_CASE("every byte of every item is cut exactly once, whatever the shapes and the memory") {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<Item> items;
    std::vector<Span> spans;
    std::uint64_t position = random() % 100;
    for (int s = 0; s < 4; ++s) {
      const auto first = static_cast<std::uint32_t>(items.size());
      const std::uint64_t begin = position;
      for (std::uint32_t i = 0; i < 1 + random() % 6; ++i) {
        if (i > 0) position += random() % 3 == 0 ? random() % 20 : 0;
        const bool has_runs = random() % 2 == 0;
        const std::uint64_t run = 1 + random() % 40, stride = run + 1 + random() % 90;
        const std::uint64_t size = has_runs ? random() % 7 * stride + run : random() % 700;
        items.push_back({0, position, position + size});
        if (has_runs) items.back().run = run, items.back().stride = stride;
        position += size;
      }
      if (position > begin) {
        spans.push_back(
            {0, begin, position, first, static_cast<std::uint32_t>(items.size()) - first});
      }
      position += 50;
    }
    Fixture fixture(items, spans, 1 + random() % 512);
    fixture.budget = 0;
    std::vector<std::uint64_t> cut(items.size());
    while (!fixture.cutter.is_exhausted()) {
      const auto block = fixture.next(random() % 2 == 0);
      if (!block) {
        fixture.budget += random() % 500;
        continue;
      }
      std::uint64_t at = block->begin;
      for (const Segment& segment : block->destinations) {
        REQUIRE(segment.size > 0);
        if (segment.item != Segment::kNoItem) {
          REQUIRE(segment.target == &fixture.object[fixture.place_of(items[segment.item], at)]);
          cut[segment.item] += segment.size;
        }
        at += segment.size;
      }
      REQUIRE(at == block->end);
    }
    for (std::size_t i = 0; i < items.size(); ++i) REQUIRE(cut[i] == items[i].size());
  }
}

}  // namespace
}  // namespace streamer
