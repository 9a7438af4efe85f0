#include "schedule/digest_ledger.h"

#include <algorithm>
#include <utility>

namespace streamer {

DigestLedger::DigestLedger(DigestPlan plan)
    : plan_(std::move(plan)),
      piece_bytes_(plan_.piece_bytes()),
      pieces_(plan_.items.size()),
      was_read_again_(plan_.items.size(), false) {}

void DigestLedger::add(const Block& block) {
  if (is_empty()) return;
  std::uint64_t position = block.begin;
  for (const Segment& destination : block.destinations) {
    if (destination.item != Segment::kNoItem && has_digest(destination.item)) {
      const std::byte* const bytes = block.read_bytes(destination, position);
      add_bytes({bytes, destination.size}, destination.item, block.source, position);
    }
    position += destination.size;
  }
}

void DigestLedger::add_bytes(std::span<const std::byte> bytes, std::uint32_t item,
                             std::uint32_t source, std::uint64_t begin) {
  if (plan_.items[item].is_hashed) {
    PieceHashes hashes;
    hash_pieces(bytes, begin, hashes);
    const std::lock_guard lock(mutex_);
    hashes_[item].merge(hashes);
  }
  while (plan_.items[item].code && !bytes.empty()) {
    const std::uint64_t size =
        std::min<std::uint64_t>(bytes.size(), next_cut(source, begin) - begin);
    const Piece piece{begin, size, compute(*plan_.items[item].code, bytes.first(size))};
    {
      const std::lock_guard lock(mutex_);
      pieces_[item].push_back(piece);
    }
    begin += size;
    bytes = bytes.subspan(size);
  }
}

std::uint64_t DigestLedger::next_cut(std::uint32_t source, std::uint64_t after) const {
  if (source >= plan_.cuts.size()) return UINT64_MAX;
  const std::vector<std::uint64_t>& cuts = plan_.cuts[source];
  const auto cut = std::upper_bound(cuts.begin(), cuts.end(), after);
  return cut == cuts.end() ? UINT64_MAX : *cut;
}

Verdict DigestLedger::judge(std::uint32_t item) {
  if (is_empty() || !has_digest(item)) return Verdict::kRight;
  const std::lock_guard lock(mutex_);
  pieces_[item] = joined_pieces(item);
  if (is_expected(item)) return Verdict::kRight;
  if (was_read_again_[item]) return Verdict::kWrong;
  was_read_again_[item] = true;
  pieces_[item].clear();
  hashes_.erase(item);
  return Verdict::kReadAgain;
}

bool DigestLedger::is_wrong(std::uint32_t item) {
  if (is_empty()) return false;
  const std::lock_guard lock(mutex_);
  return !is_expected(item);
}

bool DigestLedger::is_expected(std::uint32_t item) const {
  const ItemDigest& wanted = plan_.items[item];
  if (wanted.code && wanted.expected && whole(item) != *wanted.expected) return false;
  return !wanted.expected_hash || hash_of(item) == *wanted.expected_hash;
}

void DigestLedger::forget(std::uint32_t item) {
  if (is_empty()) return;
  const std::lock_guard lock(mutex_);
  pieces_[item].clear();
  hashes_.erase(item);
  was_read_again_[item] = false;
}

std::vector<Piece> DigestLedger::pieces(std::uint32_t item) {
  if (item >= pieces_.size()) return {};
  const std::lock_guard lock(mutex_);
  return pieces_[item];
}

Hash DigestLedger::hash(std::uint32_t item) {
  const std::lock_guard lock(mutex_);
  return hash_of(item);
}

Hash DigestLedger::hash_of(std::uint32_t item) const {
  const auto found = hashes_.find(item);
  return joined(found == hashes_.end() ? PieceHashes{} : found->second);
}

ReadError DigestLedger::error_of(const Item& item, std::uint32_t index) {
  const std::lock_guard lock(mutex_);
  const ItemDigest& wanted = plan_.items[index];
  ReadError error;
  error.code = ErrorCode::kChecksum;
  error.source = item.source;
  error.begin = item.begin;
  error.end = item.end;
  error.item = index;
  if (wanted.expected_hash) {
    error.algorithm = "sha256";
    error.expected = hexadecimal(*wanted.expected_hash);
    error.found = hexadecimal(hash_of(index));
  } else {
    error.algorithm = name_of(*wanted.code);
    error.expected = hexadecimal(*wanted.code, *wanted.expected);
    error.found = hexadecimal(*wanted.code, whole(index));
  }
  error.attempts = 2;
  error.detail = "the bytes are not those of the manifest, read twice";
  return error;
}

// Returns the pieces in order. Two pieces without a cut between them are joined.
std::vector<Piece> DigestLedger::joined_pieces(std::uint32_t item) const {
  std::vector<Piece> sorted = pieces_[item];
  std::sort(sorted.begin(), sorted.end(),
            [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  const ItemDigest& wanted = plan_.items[item];
  std::vector<Piece> result;
  for (const Piece& piece : sorted) {
    const bool is_cut = result.empty() || next_cut(wanted.source, piece.begin - 1) == piece.begin;
    if (is_cut) {
      result.push_back(piece);
    } else {
      Piece& last = result.back();
      last.value = combine(*wanted.code, last.value, piece.value, piece.bytes);
      last.bytes += piece.bytes;
    }
  }
  return result;
}

std::uint64_t DigestLedger::whole(std::uint32_t item) const {
  std::uint64_t value = 0;
  for (const Piece& piece : pieces_[item]) {
    value = combine(*plan_.items[item].code, value, piece.value, piece.bytes);
  }
  return value;
}

}  // namespace streamer
