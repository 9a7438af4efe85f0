// The SHA-256 of a byte range, by pieces: blocks land in any order, and SHA-256 needs bytes in
// order.
//
// A range is cut at multiples of kHashPieceBytes in its object. Its hash is the SHA-256 of the
// SHA-256 of each of its pieces, one after the other. docs/verify.md describes it for users.
// Guarantees: two different ranges at one place have different hashes, as far as anybody can find.
// Throws std::runtime_error if OpenSSL fails.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>

namespace streamer {

// A power of two, as the pieces of encrypted files are. So blocks, which are larger, hold whole
// pieces.
inline constexpr std::uint64_t kHashPieceBytes = 64 << 10;

using Hash = std::array<std::byte, 32>;
using PieceHashes = std::map<std::uint64_t, Hash>;  // by the offset of a piece in its object

Hash sha256(std::span<const std::byte> data);
// Adds the pieces of a range that begins at `begin` in its object. It holds whole pieces of an
// item.
void hash_pieces(std::span<const std::byte> data, std::uint64_t begin, PieceHashes& hashes);
// Returns the hash of an item from those of all its pieces.
Hash joined(const PieceHashes& hashes);
std::string hexadecimal(const Hash& hash);

}  // namespace streamer
