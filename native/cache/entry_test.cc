#include "cache/entry.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <system_error>

#include "base/temporary_file_fixture.h"
#include "cache/temporary_entry_fixture.h"
#include "integrity/crc.h"

namespace streamer {
namespace {

const std::string kObject = random_data(100'000, 2);

std::span<const std::byte> bytes_of(std::uint64_t begin, std::uint64_t end) {
  return std::as_bytes(std::span(kObject)).subspan(begin, end - begin);
}

std::uint64_t crc_of(std::uint64_t begin, std::uint64_t end) {
  return compute(Crc::kCrc32c, bytes_of(begin, end));
}

TEST_CASE("an entry finds the ranges that another entry of the same folder wrote") {
  const TemporaryEntry folder;
  CacheEntry entry(folder.path(), kObject.size());
  CacheEntry reader(folder.path(), kObject.size());
  entry.write(1000, bytes_of(1000, 31'000), {10'000, 20'000});
  CHECK(entry.checksum(1000, 31'000) == crc_of(1000, 31'000));
  CHECK(entry.written_bytes() == 30'000);
  CHECK_FALSE(reader.checksum(1000, 31'000));
  reader.refresh();
  CHECK(reader.checksum(1000, 31'000) == crc_of(1000, 31'000));
  CHECK(CacheEntry(folder.path(), kObject.size()).checksum(11'000, 31'000) ==
        crc_of(11'000, 31'000));
}

TEST_CASE("ranges that are already recorded are not written again, in whatever pieces they come") {
  const TemporaryEntry folder;
  CacheEntry entry(folder.path(), kObject.size());
  entry.write(0, bytes_of(0, 3000), {1000, 2000});
  const auto size = std::filesystem::file_size(folder.journal());
  entry.write(0, bytes_of(0, 3000), {1000, 2000});
  entry.write(0, bytes_of(0, 3000), {3000});
  CHECK(std::filesystem::file_size(folder.journal()) == size);
  CHECK(entry.written_bytes() == 3000);
  entry.forget(500, 600);
  entry.write(0, bytes_of(0, 3000), {3000});
  CHECK(entry.checksum(0, 3000) == crc_of(0, 3000));
}

TEST_CASE("what is not confirmed is not held, and what is forgotten cannot be confirmed") {
  const TemporaryEntry folder;
  CacheEntry entry(folder.path(), kObject.size());
  entry.write(0, bytes_of(0, 3000), {1000, 2000}, false);
  CHECK(entry.held_bytes() == 0);
  CHECK(CacheEntry(folder.path(), kObject.size()).held_bytes() == 0);
  entry.forget(0, 1000);
  entry.confirm(0, 1000, crc_of(0, 1000));
  CHECK(entry.held_bytes() == 0);
  entry.confirm(1000, 3000, crc_of(1000, 3000));
  CHECK(entry.checksum(1000, 3000) == crc_of(1000, 3000));
  CHECK(CacheEntry(folder.path(), kObject.size()).held_bytes() == 2000);
}

TEST_CASE("wrong bytes that another load left behind are not recorded with a range (regression)") {
  const TemporaryEntry folder;
  CacheEntry entry(folder.path(), kObject.size());
  // A load was closed before it compared what a peer gave it for the second piece.
  entry.write(1000, bytes_of(5000, 6000), {1000}, false);
  SUBCASE("the right bytes were skipped") {}
  SUBCASE("the right bytes were written in other pieces") {
    entry.write(0, bytes_of(0, 3000), {3000}, false);
  }
  SUBCASE("the right bytes were written before") {
    entry.write(0, bytes_of(0, 3000), {1000, 1000, 1000}, false);
    entry.write(1000, bytes_of(5000, 6000), {1000}, false);
  }
  entry.confirm(0, 3000, crc_of(0, 3000));
  CHECK(entry.held_bytes() == 0);
  CHECK(std::filesystem::file_size(folder.journal()) == 0);
  entry.confirm(1000, 2000, crc_of(5000, 6000));  // they are gone
  CHECK(entry.held_bytes() == 0);
}

TEST_CASE("a confirmed range is recorded, even if a part of it was recorded before") {
  const TemporaryEntry folder;
  CacheEntry entry(folder.path(), kObject.size());
  entry.write(0, bytes_of(0, 1000), {1000});
  entry.write(0, bytes_of(0, 1000), {1000}, false);
  entry.write(1000, bytes_of(1000, 3000), {2000}, false);
  CHECK_FALSE(entry.checksum(0, 3000));
  entry.confirm(0, 3000, crc_of(0, 3000));
  CHECK(entry.checksum(0, 3000) == crc_of(0, 3000));
}

TEST_CASE("each of 100 000 confirmed ranges costs one record, whatever the order") {
  constexpr std::uint64_t kRanges = 100'000;
  const std::string object = random_data(kRanges, 8);
  const auto bytes = std::as_bytes(std::span(object));
  const TemporaryEntry folder;
  CacheEntry entry(folder.path(), kRanges);
  const std::vector<std::uint64_t> pieces(kRanges / 100, 1);
  for (std::uint64_t begin = 0; begin < kRanges; begin += pieces.size()) {
    entry.write(begin, bytes.subspan(begin, pieces.size()), pieces, false);
  }
  CHECK(std::filesystem::file_size(folder.journal()) == 0);
  for (std::uint64_t i = 0; i < 2 * kRanges; ++i) {  // each of them twice
    const std::uint64_t begin = i * 7919 % kRanges;
    entry.confirm(begin, begin + 1, compute(Crc::kCrc32c, bytes.subspan(begin, 1)));
  }
  CHECK(std::filesystem::file_size(folder.journal()) == kRanges * kJournalRecordBytes);
  CHECK(entry.written_bytes() == kRanges);
  CHECK(CacheEntry(folder.path(), kRanges).check() == 0);
  CHECK(entry.checksum(0, kRanges) == compute(Crc::kCrc32c, bytes));
}

TEST_CASE("a torn record loses only its own piece, and later records are appended behind it") {
  const TemporaryEntry folder;
  CacheEntry(folder.path(), kObject.size()).write(0, bytes_of(0, 3000), {1000, 2000});
  std::filesystem::resize_file(folder.journal(), 2 * kJournalRecordBytes - 7);
  CacheEntry entry(folder.path(), kObject.size());
  CHECK(entry.held_bytes() == 1000);
  entry.write(1000, bytes_of(1000, 3000), {2000});
  CHECK(CacheEntry(folder.path(), kObject.size()).checksum(0, 3000) == crc_of(0, 3000));
}

TEST_CASE("a record that another process has half written is found once it is complete") {
  const TemporaryEntry folder;
  CacheEntry reader(folder.path(), kObject.size());
  const JournalBytes record = encode({JournalRecord::Kind::kHeld, {0, 1000, crc_of(0, 1000)}});
  const auto* chars = reinterpret_cast<const char*>(record.data());
  std::ofstream journal(folder.journal(), std::ios::app);
  journal.write(chars, 20).flush();
  reader.refresh();
  CHECK(reader.held_bytes() == 0);
  journal.write(chars + 20, kJournalRecordBytes - 20).flush();
  reader.refresh();
  CHECK(reader.held_bytes() == 1000);
}

TEST_CASE("a checksum of parts of pieces is returned only if the bytes of the pieces are right") {
  const TemporaryEntry folder;
  CacheEntry entry(folder.path(), kObject.size());
  entry.write(0, bytes_of(0, 60'000), {20'000, 20'000, 20'000});
  CHECK(entry.checksum(5000, 55'000) == crc_of(5000, 55'000));
  CHECK(entry.checksum(30'000, 30'010) == crc_of(30'000, 30'010));
  folder.flip_byte(1);  // in the first piece, before the second range
  CHECK_FALSE(entry.checksum(5000, 55'000));
  CHECK(entry.checksum(20'001, 55'000) == crc_of(20'001, 55'000));
}

TEST_CASE("a check forgets damaged pieces, and no others") {
  const TemporaryEntry folder;
  CacheEntry entry(folder.path(), kObject.size());
  entry.write(0, bytes_of(0, 60'000), {20'000, 20'000, 20'000});
  CHECK(entry.check() == 0);
  folder.flip_byte(25'000);
  CHECK(entry.check() == 20'000);
  CacheEntry again(folder.path(), kObject.size());
  CHECK(again.held_bytes() == 40'000);
  CHECK(again.check() == 0);
}

// `cache warm` reported such pieces as cached, although each load read them from the storage.
TEST_CASE("pieces that were cut off with the end of the file are forgotten, and no others") {
  const TemporaryEntry folder;
  CacheEntry(folder.path(), kObject.size()).write(0, bytes_of(0, 100'000), {50'000, 50'000});
  std::filesystem::resize_file(folder.data(), 60'000);
  CacheEntry entry(folder.path(), kObject.size());
  CHECK(std::filesystem::file_size(folder.data()) == kObject.size());
  CHECK(entry.held_bytes() == 50'000);
  CHECK_FALSE(entry.checksum(50'000, 100'000));
  CHECK(entry.check() == 0);
  CHECK(CacheEntry(folder.path(), kObject.size()).held_bytes() == 50'000);
}

TEST_CASE("a missing folder is an error of the system") {
  const TemporaryEntry folder;
  CHECK_THROWS_AS(CacheEntry(folder.path() + "/missing", 10), std::system_error);
}

TEST_CASE("a symbolic link in the place of a file is refused") {
  const TemporaryEntry folder;
  const TemporaryFile other("somebody's");
  std::filesystem::create_symlink(other.path(), folder.data());
  CHECK_THROWS_AS(CacheEntry(folder.path(), 10), std::system_error);
  CHECK(std::filesystem::file_size(other.path()) == 10);
}

}  // namespace
}  // namespace streamer
