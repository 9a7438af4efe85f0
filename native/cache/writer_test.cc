#include "cache/writer.h"

#include <doctest/doctest.h>

#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/temporary_file_fixture.h"
#include "cache/temporary_entry_fixture.h"
#include "integrity/crc.h"

namespace streamer {
namespace {

std::uint64_t crc_of(std::string_view bytes) {
  return compute(Crc::kCrc32c, std::as_bytes(std::span(bytes)));
}

// A block of two items with a gap between them, in its own memory.
struct Filled {
  explicit Filled(std::string bytes) : data(std::move(bytes)) {
    auto* first = reinterpret_cast<std::byte*>(data.data());
    block.end = data.size();
    block.destinations = {{first, 3000, 0},
                          {first + 3000, 2000, 1},
                          {nullptr, 1000, Segment::kNoItem},
                          {first + 6000, data.size() - 6000, 2}};
  }

  std::string data;
  Block block;
};

TEST_CASE("the items of a block are soon in the cache, and its gaps are not") {
  const TemporaryEntry folder;
  const auto entry = std::make_shared<CacheEntry>(folder.path(), 10'000);
  Filled filled(random_data(10'000, 3));
  const std::string before = filled.data;
  CHECK(CacheWriter::of_process().offer(entry, filled.block, false));
  filled.data.assign(10'000, '?');  // the consumer has the bytes now, and may overwrite them
  REQUIRE(CacheWriter::of_process().wait_until_idle(10));
  CHECK(entry->checksum(0, 3000) == crc_of(before.substr(0, 3000)));
  CHECK(entry->checksum(0, 5000) == crc_of(before.substr(0, 5000)));
  CHECK(entry->checksum(6000, 10'000) == crc_of(before.substr(6000)));
  CHECK(entry->held_bytes() == 9000);
  CHECK(entry->check() == 0);
}

TEST_CASE("an item that is confirmed is in the cache, and the others of its block are not") {
  const TemporaryEntry folder;
  const auto entry = std::make_shared<CacheEntry>(folder.path(), 10'000);
  const Filled filled(random_data(10'000, 5));
  CacheWriter& writer = CacheWriter::of_process();
  CHECK(writer.offer(entry, filled.block, false, false));
  writer.confirm(entry, 3000, 5000, crc_of(std::string_view(filled.data).substr(3000, 2000)));
  writer.confirm(entry, 6000, 10'000, crc_of("others"));
  REQUIRE(writer.wait_until_idle(10));
  CHECK(entry->held_bytes() == 2000);
  CHECK(entry->checksum(3000, 5000) == crc_of(std::string_view(filled.data).substr(3000, 2000)));
}

TEST_CASE("a range that is offered and then forgotten stays forgotten") {
  const TemporaryEntry folder;
  const auto entry = std::make_shared<CacheEntry>(folder.path(), 10'000);
  const Filled filled(random_data(10'000, 4));
  CacheWriter& writer = CacheWriter::of_process();
  CHECK(writer.offer(entry, filled.block, false));
  writer.forget(entry, 0, 3000);
  REQUIRE(writer.wait_until_idle(10));
  CHECK(CacheEntry(folder.path(), 10'000).held_bytes() == 6000);
}

TEST_CASE("many threads offer blocks of many objects, and every recorded checksum is right") {
  const TemporaryEntry one, other;
  const std::vector entries = {std::make_shared<CacheEntry>(one.path(), 10'000),
                               std::make_shared<CacheEntry>(other.path(), 10'000)};
  std::vector<std::thread> threads;
  for (unsigned number = 0; number < 4; ++number) {
    threads.emplace_back([&entries, number] {
      const Filled filled(random_data(10'000, number % 2));
      for (int i = 0; i < 50; ++i) {
        CacheWriter::of_process().offer(entries[number % 2], filled.block, true);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  REQUIRE(CacheWriter::of_process().wait_until_idle(30));
  for (const auto& entry : entries) {
    CHECK(entry->held_bytes() == 9000);
    CHECK(entry->check() == 0);
  }
}

}  // namespace
}  // namespace streamer
