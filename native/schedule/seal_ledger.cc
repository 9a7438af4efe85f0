#include "schedule/seal_ledger.h"

#include <stdexcept>
#include <string>
#include <utility>

namespace streamer {
namespace {

std::vector<std::uint64_t> begins_of(const SealPlan& seals, const std::vector<Item>& items) {
  std::vector<std::uint64_t> begins;
  if (seals.items.empty()) return begins;
  begins.reserve(items.size());
  for (const Item& item : items) begins.push_back(item.begin);
  return begins;
}

}  // namespace

SealLedger::SealLedger(SealPlan plan, const std::vector<Item>& items)
    : plan_(std::move(plan)),
      piece_bytes_(plan_.piece_bytes()),
      begins_(begins_of(plan_, items)),
      was_read_again_(plan_.items.size(), false) {}

void SealLedger::decrypt(const Block& block) {
  if (is_empty()) return;
  std::uint64_t position = block.begin;
  for (const Segment& destination : block.destinations) {
    if (destination.item != Segment::kNoItem) {
      std::byte* const bytes =
          block.in_slot ? block.in_slot->target + (position - block.begin) : destination.target;
      decrypt_bytes({bytes, destination.size}, destination.item, position);
    }
    position += destination.size;
  }
}

void SealLedger::decrypt_bytes(std::span<std::byte> bytes, std::uint32_t item,
                               std::uint64_t position) {
  const SealedItem& sealed = plan_.items[item];
  if (sealed.file == SealedItem::kPlain) return;
  const SealedFile& file = plan_.files[sealed.file];
  const PieceCipher& cipher = *file.cipher;
  const std::uint64_t before =
      position / cipher.piece_bytes() - begins_[item] / cipher.piece_bytes();
  const std::uint64_t first = sealed.first_piece + before;
  const std::uint64_t pieces = cipher.pieces_in(position, position + bytes.size());
  const std::span tags(file.tags);
  const auto wrong =
      cipher.decrypt(position, first, bytes, tags.subspan(first * kTagBytes, pieces * kTagBytes));
  if (wrong == PieceCipher::kAllRight) return;
  const std::lock_guard lock(mutex_);
  wrong_.insert(item);
}

Verdict SealLedger::judge(std::uint32_t item) {
  if (is_empty()) return Verdict::kRight;
  const std::lock_guard lock(mutex_);
  if (wrong_.erase(item) == 0) return Verdict::kRight;
  if (was_read_again_[item]) return Verdict::kWrong;
  was_read_again_[item] = true;
  return Verdict::kReadAgain;
}

void SealLedger::discard(std::uint32_t item) {
  if (is_empty()) return;
  const std::lock_guard lock(mutex_);
  wrong_.erase(item);
}

void SealLedger::forget(std::uint32_t item) {
  if (is_empty()) return;
  const std::lock_guard lock(mutex_);
  wrong_.erase(item);
  was_read_again_[item] = false;
}

ReadError SealLedger::error_of(const Item& item, std::uint32_t index) {
  ReadError error =
      streamer::error_of(ErrorCode::kTampered, "its authentication tag mismatches, read twice");
  error.source = item.source;
  error.begin = item.begin;
  error.end = item.end;
  error.item = index;
  error.attempts = 2;
  return error;
}

}  // namespace streamer
