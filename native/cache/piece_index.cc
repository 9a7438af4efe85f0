#include "cache/piece_index.h"

#include <algorithm>
#include <utility>

#include "integrity/crc.h"

namespace streamer {

void PieceIndex::add(const JournalRecord& record) {
  const CachedPiece& piece = record.piece;
  if (piece.bytes == 0 || piece.begin > object_bytes_ ||
      piece.bytes > object_bytes_ - piece.begin) {
    return;
  }
  if (record.kind == JournalRecord::Kind::kForgotten) return forget(piece.begin, piece.end());
  if (record.kind != JournalRecord::Kind::kHeld) return;
  longest_ = std::max(longest_, piece.bytes);
  const auto [first, last] = pieces_.equal_range(piece.begin);
  for (auto it = first; it != last; ++it) {
    if (it->second.bytes != piece.bytes) continue;
    it->second = piece;  // the same piece was written again: the last record counts
    return;
  }
  pieces_.emplace(piece.begin, piece);
}

void PieceIndex::forget(std::uint64_t begin, std::uint64_t end) {
  auto it = pieces_.lower_bound(begin < longest_ ? 0 : begin - longest_);
  while (it != pieces_.end() && it->first < end) {
    it = it->second.end() > begin ? pieces_.erase(it) : std::next(it);
  }
}

// Walks all positions that can be reached from `begin` by consecutive pieces, in order. If several
// pieces begin at one position, a longer one may lead past `end` and a shorter one to it.
std::optional<std::uint64_t> PieceIndex::checksum(std::uint64_t begin, std::uint64_t end) const {
  std::map<std::uint64_t, std::uint64_t> reached{{begin, 0}};  // position: checksum up to it
  while (!reached.empty()) {
    const auto [position, crc] = *reached.begin();
    if (position == end) return crc;
    reached.erase(reached.begin());
    const auto [first, last] = pieces_.equal_range(position);
    for (auto it = first; it != last; ++it) {
      const CachedPiece& piece = it->second;
      if (piece.end() > end) continue;
      reached.emplace(piece.end(), combine(Crc::kCrc32c, crc, piece.crc, piece.bytes));
    }
  }
  return std::nullopt;
}

// Returns the piece that reaches furthest, of all that hold the position.
PieceIndex::Pieces::const_iterator PieceIndex::piece_around(std::uint64_t position) const {
  auto best = pieces_.end();
  auto it = pieces_.lower_bound(position < longest_ ? 0 : position - longest_);
  for (; it != pieces_.end() && it->first <= position; ++it) {
    if (it->second.end() <= position) continue;
    if (best == pieces_.end() || it->second.end() > best->second.end()) best = it;
  }
  return best;
}

std::vector<CachedPiece> PieceIndex::around(std::uint64_t begin, std::uint64_t end) const {
  std::vector<CachedPiece> found;
  auto next = piece_around(begin);
  while (next != pieces_.end()) {
    const CachedPiece& piece = next->second;
    found.push_back(piece);
    if (piece.end() >= end) return found;
    const auto [first, last] = pieces_.equal_range(piece.end());
    next = std::max_element(first, last, [](const auto& one, const auto& other) {
      return one.second.bytes < other.second.bytes;
    });
    if (next == last) break;  // a hole, or pieces that overlap
  }
  return {};
}

std::uint64_t PieceIndex::held_bytes() const {
  std::uint64_t held = 0, position = 0;
  for (const auto& [begin, piece] : pieces_) {
    const std::uint64_t from = std::max(position, begin);
    if (piece.end() <= from) continue;
    held += piece.end() - from;
    position = piece.end();
  }
  return held;
}

std::vector<CachedPiece> PieceIndex::pieces() const {
  std::vector<CachedPiece> all;
  all.reserve(pieces_.size());
  for (const auto& [_, piece] : pieces_) all.push_back(piece);
  return all;
}

}  // namespace streamer
