#include "schedule/digest_ledger.h"

#include <doctest/doctest.h>

#include <string>
#include <thread>
#include <vector>

namespace streamer {
namespace {

std::string some_text(std::size_t size) {
  std::string text(size, '\0');
  for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i * 31 + i / 7);
  return text;
}

std::uint64_t value_of(const std::string& text) {
  return compute(Crc::kCrc32c, std::as_bytes(std::span(text.data(), text.size())));
}

// Returns a block with the object's bytes [begin, end), all of one item.
Block block_of(std::string& object, std::uint64_t begin, std::uint64_t end, std::uint32_t item) {
  Block block;
  block.begin = begin;
  block.end = end;
  block.destinations.push_back(
      {reinterpret_cast<std::byte*>(object.data()) + begin, end - begin, item});
  return block;
}

DigestPlan plan_for(std::optional<std::uint64_t> expected, std::vector<std::uint64_t> cuts = {}) {
  DigestPlan plan;
  plan.items.push_back({Crc::kCrc32c, expected, 0});
  if (!cuts.empty()) plan.cuts.push_back(std::move(cuts));
  return plan;
}

TEST_CASE("with an empty plan, an item is right and has no pieces") {
  DigestLedger ledger{DigestPlan{}};
  std::string object = some_text(10);
  ledger.add(block_of(object, 0, 10, 0));
  CHECK(ledger.is_empty());
  CHECK(ledger.judge(0) == Verdict::kRight);
  CHECK(ledger.pieces(0).empty());
}

TEST_CASE("blocks in any order give the digest of the whole") {
  std::string object = some_text(300);
  DigestLedger ledger(plan_for(value_of(object)));
  ledger.add(block_of(object, 200, 300, 0));
  ledger.add(block_of(object, 0, 100, 0));
  ledger.add(block_of(object, 100, 200, 0));
  CHECK(ledger.judge(0) == Verdict::kRight);
  const std::vector<Piece> pieces = ledger.pieces(0);
  REQUIRE(pieces.size() == 1);
  CHECK(pieces[0].bytes == 300);
  CHECK(pieces[0].value == value_of(object));
}

TEST_CASE("blocks of several threads give the digest of the whole") {
  std::string object = some_text(64'000);
  DigestLedger ledger(plan_for(value_of(object)));
  std::vector<std::thread> readers;
  for (std::uint64_t reader = 0; reader < 4; ++reader) {
    readers.emplace_back([&, reader] {
      for (std::uint64_t block = reader; block < 64; block += 4) {
        ledger.add(block_of(object, block * 1000, (block + 1) * 1000, 0));
      }
    });
  }
  for (std::thread& reader : readers) reader.join();
  CHECK(ledger.judge(0) == Verdict::kRight);
}

TEST_CASE("gaps and items without a digest have no effect") {
  std::string object = some_text(30);
  DigestPlan plan = plan_for(std::nullopt);
  plan.items.push_back({});
  DigestLedger ledger(plan);
  Block block = block_of(object, 0, 10, 0);
  block.end = 30;
  block.destinations.push_back({nullptr, 10, Segment::kNoItem});
  block.destinations.push_back({reinterpret_cast<std::byte*>(object.data()) + 20, 10, 1});
  ledger.add(block);
  CHECK(ledger.judge(0) == Verdict::kRight);
  CHECK(ledger.judge(1) == Verdict::kRight);
  CHECK(ledger.pieces(0)[0].value == value_of(object.substr(0, 10)));
  CHECK(ledger.pieces(1).empty());
}

TEST_CASE("a piece ends at every cut, wherever the blocks end") {
  std::string object = some_text(100);
  DigestLedger ledger(plan_for(std::nullopt, {30, 60, 100}));
  ledger.add(block_of(object, 45, 100, 0));
  ledger.add(block_of(object, 10, 45, 0));
  CHECK(ledger.judge(0) == Verdict::kRight);
  const std::vector<Piece> pieces = ledger.pieces(0);
  REQUIRE(pieces.size() == 3);
  const std::uint64_t ends[] = {10, 30, 60, 100};
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(pieces[i].begin == ends[i]);
    CHECK(pieces[i].value == value_of(object.substr(ends[i], ends[i + 1] - ends[i])));
  }
}

TEST_CASE("a wrong item is read once more, and the final error has both digests") {
  std::string object = some_text(100);
  DigestLedger ledger(plan_for(0x1234));
  ledger.add(block_of(object, 0, 100, 0));
  CHECK(ledger.judge(0) == Verdict::kReadAgain);
  ledger.add(block_of(object, 0, 100, 0));
  CHECK(ledger.judge(0) == Verdict::kWrong);
  const ReadError error = ledger.error_of({7, 0, 100, nullptr}, 0);
  CHECK(error.code == ErrorCode::kChecksum);
  CHECK(error.source == 7);
  CHECK(error.item == 0);
  CHECK(error.algorithm == "crc32c");
  CHECK(error.expected == "00001234");
  CHECK(error.found.size() == 8);
}

TEST_CASE("an item that is right at the second read is right") {
  std::string object = some_text(100);
  DigestLedger ledger(plan_for(value_of(object)));
  std::string flipped = object;
  flipped[50] = static_cast<char>(flipped[50] ^ 1);
  ledger.add(block_of(flipped, 0, 100, 0));
  CHECK(ledger.judge(0) == Verdict::kReadAgain);
  ledger.add(block_of(object, 0, 100, 0));
  CHECK(ledger.judge(0) == Verdict::kRight);
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

TEST_CASE("a hashed item is right only with its hash, whatever the order of its blocks") {
  constexpr std::uint64_t kPiece = kHashPieceBytes;
  std::string object = some_text(3 * kPiece + 100);
  constexpr std::uint64_t kBegin = 1000;  // of the item
  PieceHashes hashes;
  hash_pieces(bytes_of(object).subspan(kBegin), kBegin, hashes);
  DigestPlan plan;
  plan.items.push_back({.is_hashed = true, .expected_hash = joined(hashes)});
  CHECK(plan.piece_bytes() == kPiece);
  const auto add = [](DigestLedger& ledger, std::string& bytes) {
    ledger.add(block_of(bytes, 2 * kPiece, bytes.size(), 0));
    ledger.add(block_of(bytes, kBegin, 2 * kPiece, 0));
  };
  DigestLedger ledger(plan);
  add(ledger, object);
  CHECK(ledger.judge(0) == Verdict::kRight);

  // A multiple of the polynomial of CRC32C: the checksum stays, the hash does not.
  std::string forged = object;
  std::uint64_t pattern = 0x82f63b78ULL << 1 | 1;
  for (std::size_t i = 0; i < 5; ++i, pattern >>= 8) {
    forged[5000 + i] = static_cast<char>(forged[5000 + i] ^ static_cast<char>(pattern & 0xff));
  }
  CHECK(value_of(forged) == value_of(object));
  DigestLedger other(plan);
  add(other, forged);
  CHECK(other.judge(0) == Verdict::kReadAgain);
  add(other, forged);
  CHECK(other.judge(0) == Verdict::kWrong);
  const ReadError error = other.error_of({7, kBegin, object.size(), nullptr}, 0);
  CHECK(error.algorithm == "sha256");
  CHECK(error.expected == hexadecimal(joined(hashes)));
  CHECK(error.found != error.expected);
  other.forget(0);
  add(other, object);
  CHECK(other.judge(0) == Verdict::kRight);
}

}  // namespace
}  // namespace streamer
