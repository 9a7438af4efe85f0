#include "integrity/piece_cipher.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

namespace streamer {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::uint64_t kRight = PieceCipher::kAllRight;

Bytes key_of(int value) { return Bytes(kCipherKeyBytes, static_cast<std::byte>(value)); }

Bytes some_bytes(std::size_t size) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 31 + i / 7);
  return bytes;
}

std::string hexadecimal(const Bytes& bytes) {
  std::string text;
  for (const std::byte each : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    text += kDigits[std::to_integer<int>(each) >> 4];
    text += kDigits[std::to_integer<int>(each) & 15];
  }
  return text;
}

// Encrypted bytes of a file from `position` on, and their tags.
struct Sealed {
  Sealed(const PieceCipher& cipher, std::uint64_t position, std::uint64_t first, const Bytes& plain)
      : data(plain.size()), tags(cipher.pieces_in(position, position + plain.size()) * kTagBytes) {
    cipher.encrypt(position, first, plain, data.data(), tags);
  }
  Bytes data;
  Bytes tags;
};

// Test case 14 of McGrew and Viega, "The Galois/Counter Mode of Operation (GCM)", 2005.
TEST_CASE("a piece is encrypted as in the published test case of GCM") {
  const PieceCipher cipher(key_of(0), 16);
  const Sealed sealed(cipher, 0, 0, Bytes(16));
  CHECK(hexadecimal(sealed.data) == "cea7403d4d606b6e074ec5d3baf39d18");
  CHECK(hexadecimal(sealed.tags) == "d0d1c8a799996bf0265b98b5d48ab919");
}

TEST_CASE("pieces end at multiples of their size in the file, not in the tensor") {
  const PieceCipher cipher(key_of(1), 64);
  CHECK(cipher.pieces_in(0, 0) == 0);
  CHECK(cipher.pieces_in(70, 70) == 0);
  CHECK(cipher.pieces_in(0, 64) == 1);
  CHECK(cipher.pieces_in(63, 65) == 2);
  CHECK(cipher.pieces_in(10, 200) == 4);
}

TEST_CASE("consecutive pieces are decrypted together or in parts") {
  const PieceCipher cipher(key_of(1), 64);
  const Bytes plain = some_bytes(190);
  const Sealed sealed(cipher, 10, 5, plain);
  Bytes all = sealed.data;
  CHECK(cipher.decrypt(10, 5, all, sealed.tags) == kRight);
  CHECK(all == plain);
  Bytes rest(sealed.data.begin() + 54, sealed.data.end());  // from byte 64 of the file on
  const Bytes tags(sealed.tags.begin() + kTagBytes, sealed.tags.end());
  CHECK(cipher.decrypt(64, 6, rest, tags) == kRight);
  CHECK(rest == Bytes(plain.begin() + 54, plain.end()));
}

TEST_CASE("a wrong piece is detected and overwritten, and the pieces around it are decrypted") {
  const PieceCipher cipher(key_of(1), 64);
  const Bytes plain = some_bytes(192);
  Sealed sealed(cipher, 0, 1, plain);
  sealed.data[100] ^= std::byte{1};
  CHECK(cipher.decrypt(0, 1, sealed.data, sealed.tags) == 2);
  Bytes expected = plain;
  std::fill(expected.begin() + 64, expected.begin() + 128, std::byte{0});
  CHECK(sealed.data == expected);
}

TEST_CASE("a piece with another number, tag, key or length is refused") {
  const PieceCipher cipher(key_of(1), 64);
  const Sealed sealed(cipher, 0, 1, some_bytes(128));
  const auto first_wrong = [&](const PieceCipher& with, std::uint64_t number, Bytes data,
                               Bytes tags) { return with.decrypt(0, number, data, tags); };
  CHECK(first_wrong(cipher, 1, sealed.data, sealed.tags) == kRight);
  CHECK(first_wrong(cipher, 2, sealed.data, sealed.tags) == 2);
  CHECK(first_wrong(PieceCipher(key_of(2), 64), 1, sealed.data, sealed.tags) == 1);
  Bytes swapped = sealed.tags;
  std::swap_ranges(swapped.begin(), swapped.begin() + kTagBytes, swapped.begin() + kTagBytes);
  CHECK(first_wrong(cipher, 1, sealed.data, swapped) == 1);
  const Bytes shorter(sealed.data.begin(), sealed.data.begin() + 127);
  CHECK(first_wrong(cipher, 1, shorter, sealed.tags) == 2);
}

TEST_CASE("wrong keys, sizes and numbers of tags are refused") {
  CHECK_THROWS_AS(PieceCipher(Bytes(31), 64), std::invalid_argument);
  CHECK_THROWS_AS(PieceCipher(key_of(1), 0), std::invalid_argument);
  CHECK_THROWS_AS(PieceCipher(key_of(1), (std::uint64_t{1} << 30) + 1), std::invalid_argument);
  const PieceCipher cipher(key_of(1), 64);
  Bytes data(128);
  CHECK_THROWS_AS(cipher.decrypt(0, 1, data, Bytes(kTagBytes)), std::invalid_argument);
}

}  // namespace
}  // namespace streamer
