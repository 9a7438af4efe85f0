#include "schedule/digest_ledger.h"

#include <algorithm>
#include <utility>

namespace streamer {

DigestLedger::DigestLedger(DigestPlan plan)
    : plan_(std::move(plan)),
      pieces_(plan_.items.size()),
      was_read_again_(plan_.items.size(), false) {}

void DigestLedger::add(const Block& block) {
  if (is_empty()) return;
  std::uint64_t position = block.begin;
  for (const Segment& destination : block.destinations) {
    if (destination.item != Segment::kNoItem && plan_.items[destination.item].code) {
      const std::byte* const bytes = block.read_bytes(destination, position);
      add_bytes({bytes, destination.size}, destination.item, block.source, position);
    }
    position += destination.size;
  }
}

void DigestLedger::add_bytes(std::span<const std::byte> bytes, std::uint32_t item,
                             std::uint32_t source, std::uint64_t begin) {
  while (!bytes.empty()) {
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
  if (is_empty() || !plan_.items[item].code) return Verdict::kRight;
  const std::lock_guard lock(mutex_);
  pieces_[item] = joined(item);
  const std::optional<std::uint64_t>& expected = plan_.items[item].expected;
  if (!expected || whole(item) == *expected) return Verdict::kRight;
  if (was_read_again_[item]) return Verdict::kWrong;
  was_read_again_[item] = true;
  pieces_[item].clear();
  return Verdict::kReadAgain;
}

bool DigestLedger::is_wrong(std::uint32_t item) {
  if (is_empty()) return false;
  const std::lock_guard lock(mutex_);
  const std::optional<std::uint64_t>& expected = plan_.items[item].expected;
  return plan_.items[item].code && expected && whole(item) != *expected;
}

void DigestLedger::forget(std::uint32_t item) {
  if (is_empty()) return;
  const std::lock_guard lock(mutex_);
  pieces_[item].clear();
  was_read_again_[item] = false;
}

std::vector<Piece> DigestLedger::pieces(std::uint32_t item) {
  if (item >= pieces_.size()) return {};
  const std::lock_guard lock(mutex_);
  return pieces_[item];
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
  error.algorithm = name_of(*wanted.code);
  error.expected = hexadecimal(*wanted.code, *wanted.expected);
  error.found = hexadecimal(*wanted.code, whole(index));
  error.attempts = 2;
  error.detail = "the bytes are not those of the manifest, read twice";
  return error;
}

// Returns the pieces in order. Two pieces without a cut between them are joined.
std::vector<Piece> DigestLedger::joined(std::uint32_t item) const {
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
