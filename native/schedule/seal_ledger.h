// Decrypts the pieces of items, block by block as the blocks land, and judges whether the tags of
// each item's pieces are right.
//
// Guarantees: an item is judged right only if the tag of each of its pieces is right. A wrong item
// is read once more; if it is wrong again, that is final. A block holds whole pieces, because
// blocks end at multiples of the piece size and at the ends of items. An empty plan costs nothing.
//
// Thread-safe. Decrypts outside the lock, on the thread of the reader.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <span>
#include <vector>

#include "base/read_error.h"
#include "integrity/seal_plan.h"
#include "plan/plan.h"
#include "schedule/digest_ledger.h"

namespace streamer {

class SealLedger {
 public:
  // `items` are the items of the plan in their initial state.
  SealLedger(SealPlan plan, const std::vector<Item>& items);

  bool is_empty() const { return plan_.items.empty(); }
  std::uint64_t piece_bytes() const { return piece_bytes_; }

  // Decrypts a block whose bytes are all in place; the plain bytes replace them.
  void decrypt(const Block& block);
  // Judges an item. Call this after all its blocks were decrypted.
  Verdict judge(std::uint32_t item);
  // Discards the result for an item that is read again because of its digest.
  void discard(std::uint32_t item);
  // Like discard(), and allows another attempt, because the item came from a cache.
  void forget(std::uint32_t item);
  // Returns the error for an item that was judged wrong.
  static ReadError error_of(const Item& item, std::uint32_t index);

 private:
  // Decrypts bytes of one item, which begin at `position` in the object.
  void decrypt_bytes(std::span<std::byte> bytes, std::uint32_t item, std::uint64_t position);

  const SealPlan plan_;
  const std::uint64_t piece_bytes_;
  const std::vector<std::uint64_t> begins_;  // by item: the offset of its first byte in its object
  std::mutex mutex_;                         // guards everything below
  std::set<std::uint32_t> wrong_;            // items with a wrong piece that were not judged yet
  std::vector<bool> was_read_again_;         // by item
};

}  // namespace streamer
