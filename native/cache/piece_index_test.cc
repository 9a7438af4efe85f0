#include "cache/piece_index.h"

#include <doctest/doctest.h>

#include <span>
#include <string>

#include "base/temporary_file_fixture.h"
#include "integrity/crc.h"

namespace streamer {
namespace {

const std::string kObject = random_data(1000, 1);

std::uint64_t crc_of(std::uint64_t begin, std::uint64_t end) {
  return compute(Crc::kCrc32c, std::as_bytes(std::span(kObject)).subspan(begin, end - begin));
}

JournalRecord held(std::uint64_t begin, std::uint64_t end) {
  return {JournalRecord::Kind::kHeld, {begin, end - begin, crc_of(begin, end)}};
}

JournalRecord forgotten(std::uint64_t begin, std::uint64_t end) {
  return {JournalRecord::Kind::kForgotten, {begin, end - begin, 0}};
}

PieceIndex index_of(const std::vector<JournalRecord>& records) {
  PieceIndex index(kObject.size());
  for (const JournalRecord& record : records) index.add(record);
  return index;
}

TEST_CASE("the checksum of a range is that of its pieces, in whatever order they were added") {
  const PieceIndex index = index_of({held(300, 500), held(0, 100), held(100, 300)});
  CHECK(index.checksum(0, 500) == crc_of(0, 500));
  CHECK(index.checksum(100, 500) == crc_of(100, 500));
  CHECK_FALSE(index.checksum(0, 400));  // ends within a piece
  CHECK_FALSE(index.checksum(50, 100));
  CHECK_FALSE(index.checksum(0, 501));
  CHECK(index.held_bytes() == 500);
}

TEST_CASE("a range with a hole is not in the cache") {
  const PieceIndex index = index_of({held(0, 100), held(200, 300)});
  CHECK_FALSE(index.checksum(0, 300));
  CHECK(index.around(50, 250).empty());
  CHECK(index.held_bytes() == 200);
}

TEST_CASE("among overlapping pieces, those that lead to the end of the range are used") {
  // The longest piece that begins at 0 ends past the end. No piece begins where the next longest
  // ends.
  const PieceIndex index =
      index_of({held(0, 900), held(0, 350), held(0, 100), held(100, 400), held(340, 400)});
  CHECK(index.checksum(0, 400) == crc_of(0, 400));
  CHECK(index.checksum(0, 900) == crc_of(0, 900));
  CHECK(index.held_bytes() == 900);
}

TEST_CASE("a forgotten range is gone, with every piece that overlaps it") {
  const PieceIndex index =
      index_of({held(0, 100), held(100, 200), held(200, 300), held(0, 300), forgotten(150, 160)});
  CHECK(index.checksum(0, 100) == crc_of(0, 100));
  CHECK_FALSE(index.checksum(100, 200));
  CHECK(index.checksum(200, 300) == crc_of(200, 300));
  CHECK_FALSE(index.checksum(0, 300));
}

TEST_CASE("if a piece was written twice, the last record counts") {
  JournalRecord wrong = held(0, 100);
  wrong.piece.crc ^= 1;
  CHECK(index_of({wrong, held(0, 100)}).checksum(0, 100) == crc_of(0, 100));
}

TEST_CASE("a range that begins and ends within pieces is found with these pieces") {
  const PieceIndex index = index_of({held(0, 50), held(40, 100), held(100, 300), held(300, 500)});
  const std::vector<CachedPiece> around = index.around(45, 310);
  REQUIRE(around.size() == 3);
  CHECK(around.front() == held(40, 100).piece);
  CHECK(around.back() == held(300, 500).piece);
}

TEST_CASE("a piece that does not fit into the object is dropped") {
  PieceIndex index(1000);
  for (const CachedPiece piece :
       {CachedPiece{900, 101, 0}, CachedPiece{5, 0, 0}, CachedPiece{1001, 1, 0},
        CachedPiece{8, UINT64_MAX - 4, 0}, CachedPiece{UINT64_MAX, UINT64_MAX, 0}}) {
    index.add({JournalRecord::Kind::kHeld, piece});
    index.add({JournalRecord::Kind::kForgotten, piece});
  }
  CHECK(index.pieces().empty());
}

}  // namespace
}  // namespace streamer
