// Encrypts and decrypts the pieces of one file with AES-256-GCM, through OpenSSL.
// docs/encryption.md describes the format.
//
// A file is cut at multiples of the piece size, and at the ends of its tensors. Each piece has a
// tag, and a number in its file, which is also its nonce. A key encrypts only one file and only
// once, so no nonce occurs twice.
//
// Guarantees: bytes with a wrong tag are overwritten with zeros; the key is overwritten when its
// object is destroyed. Throws std::runtime_error if OpenSSL fails for another reason than a tag.
// Thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace streamer {

inline constexpr std::size_t kCipherKeyBytes = 32;
inline constexpr std::size_t kTagBytes = 16;

class PieceCipher {
 public:
  // Throws std::invalid_argument if the key has another size, or the piece size is 0 or above
  // 2^30: OpenSSL takes lengths as int.
  PieceCipher(std::span<const std::byte> key, std::uint64_t piece_bytes);
  ~PieceCipher();
  PieceCipher(const PieceCipher&) = delete;
  PieceCipher& operator=(const PieceCipher&) = delete;

  std::uint64_t piece_bytes() const { return piece_bytes_; }
  // Returns the number of pieces in a range of a file. The range must begin and end with a piece.
  std::uint64_t pieces_in(std::uint64_t begin, std::uint64_t end) const;

  // Encrypts whole pieces.
  //   position: offset in the file at which `plain` begins
  //   first: number of the first piece
  //   to: room for as many bytes; may be the memory of `plain`
  //   tags: kTagBytes for each piece
  void encrypt(std::uint64_t position, std::uint64_t first, std::span<const std::byte> plain,
               std::byte* to, std::span<std::byte> tags) const;
  // Decrypts whole pieces in place; the arguments are as above. Returns the number of the first
  // piece whose tag mismatches, or kAllRight.
  std::uint64_t decrypt(std::uint64_t position, std::uint64_t first, std::span<std::byte> data,
                        std::span<const std::byte> tags) const;

  static constexpr std::uint64_t kAllRight = UINT64_MAX;

 private:
  std::uint64_t end_of_piece(std::uint64_t position, std::uint64_t end) const;
  void check_tags(std::uint64_t position, std::uint64_t bytes, std::size_t tag_bytes) const;

  std::array<std::byte, kCipherKeyBytes> key_;
  const std::uint64_t piece_bytes_;
};

}  // namespace streamer
