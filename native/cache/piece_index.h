// Which ranges of one object are in the cache, and the CRC32C of any that pieces make up.
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

  // A piece that is empty or reaches beyond the object is dropped: no reader asks for it.
  void add(const JournalRecord& record);

  // The CRC32C of a range that begins and ends where pieces do, with pieces in between; else none.
  std::optional<std::uint64_t> checksum(std::uint64_t begin, std::uint64_t end) const;
  // Returns consecutive pieces that together hold the range; it may begin inside the first and end
  // inside the last. Empty if no such pieces are found.
  std::vector<CachedPiece> around(std::uint64_t begin, std::uint64_t end) const;
  // Bytes that are in some piece.
  std::uint64_t held_bytes() const;
  std::vector<CachedPiece> pieces() const;

 private:
  using Pieces = std::multimap<std::uint64_t, CachedPiece>;  // by their begin

  Pieces::const_iterator piece_around(std::uint64_t position) const;
  void forget(std::uint64_t begin, std::uint64_t end);

  const std::uint64_t object_bytes_;
  Pieces pieces_;
  std::uint64_t longest_ = 0;  // bytes of a piece
};

}  // namespace streamer
