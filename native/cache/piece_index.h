// Which ranges of one object are in the cache, and the CRC32C of ranges that consist of pieces.
//
// Pure: values in, values out. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "cache/journal.h"

namespace streamer {

class PieceIndex {
 public:
  explicit PieceIndex(std::uint64_t object_bytes) : object_bytes_(object_bytes) {}

  // Drops a piece that is empty or reaches beyond the object: no reader asks for it.
  void add(const JournalRecord& record);

  // Returns the CRC32C of a range that consists of whole, consecutive pieces; else nothing.
  std::optional<std::uint64_t> checksum(std::uint64_t begin, std::uint64_t end) const;
  // Returns consecutive pieces that together hold the range. The range may begin inside the first
  // piece and end inside the last. The result is empty if there are no such pieces.
  std::vector<CachedPiece> around(std::uint64_t begin, std::uint64_t end) const;
  // Number of bytes of the object that are in at least one piece.
  std::uint64_t held_bytes() const;
  std::vector<CachedPiece> pieces() const;

 private:
  using Pieces = std::multimap<std::uint64_t, CachedPiece>;  // the key is the begin of the piece

  Pieces::const_iterator piece_around(std::uint64_t position) const;
  void forget(std::uint64_t begin, std::uint64_t end);

  const std::uint64_t object_bytes_;
  Pieces pieces_;
  std::uint64_t longest_ = 0;  // bytes of the longest piece
};

}  // namespace streamer
