#include "integrity/piece_hash.h"

#include <doctest/doctest.h>

#include <string>

namespace streamer {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

TEST_CASE("SHA-256 equals the published values") {  // FIPS 180-2, appendix B.1; and of nothing
  CHECK(hexadecimal(sha256(bytes_of("abc"))) ==
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(hexadecimal(sha256({})) ==
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST_CASE("a range is hashed by pieces that end at multiples in its object") {
  const std::string text(2 * kHashPieceBytes, 'x');
  PieceHashes hashes;
  hash_pieces(bytes_of(text), 10, hashes);
  REQUIRE(hashes.size() == 3);
  CHECK(hashes.at(10) == sha256(bytes_of(text).first(kHashPieceBytes - 10)));
  CHECK(hashes.at(kHashPieceBytes) == sha256(bytes_of(text).first(kHashPieceBytes)));
  CHECK(hashes.at(2 * kHashPieceBytes) == sha256(bytes_of(text).first(10)));
  std::string all;
  for (const auto& [begin, hash] : hashes)
    all.append(reinterpret_cast<const char*>(hash.data()), hash.size());
  CHECK(joined(hashes) == sha256(bytes_of(all)));
}

}  // namespace
}  // namespace streamer
