// Digests of items, computed block by block as the blocks land, and what becomes of an item whose
// digest is not the expected one.
//
// Guarantees: every byte of a wanted item goes into its digest once, whatever the order of its
// blocks; an item is judged right only if its digest is the expected one; a wrong one is read once
// more, and is final when it is wrong again. An empty plan costs nothing.
//
// Thread-safe. Digests are computed outside the lock, on the thread of the reader.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/read_error.h"
#include "integrity/crc.h"
#include "plan/plan.h"

namespace streamer {

// The digest of a run of bytes of one item.
struct Piece {
  std::uint64_t begin = 0;  // in the object
  std::uint64_t bytes = 0;
  std::uint64_t value = 0;
};

enum class Verdict : std::uint8_t { kRight, kReadAgain, kWrong };

class DigestLedger {
 public:
  explicit DigestLedger(DigestPlan plan);

  bool is_empty() const { return plan_.items.empty(); }

  // A block whose bytes are all in place.
  void add(const Block& block);
  // All bytes of the item were added.
  Verdict judge(std::uint32_t item);
  // Whether the digest of an item that was judged mismatches.
  bool is_wrong(std::uint32_t item);
  // What was added of an item is not to count: it is read again, from elsewhere.
  void forget(std::uint32_t item);
  // Of an item that was judged: in order, one piece, or one between each two cuts.
  std::vector<Piece> pieces(std::uint32_t item);
  // What to say of an item that was judged wrong.
  ReadError error_of(const Item& item, std::uint32_t index);

 private:
  // Those of one item, which begin there in the object.
  void add_bytes(std::span<const std::byte> bytes, std::uint32_t item, std::uint32_t source,
                 std::uint64_t begin);
  std::uint64_t next_cut(std::uint32_t source, std::uint64_t after) const;
  std::vector<Piece> joined(std::uint32_t item) const;
  std::uint64_t whole(std::uint32_t item) const;

  const DigestPlan plan_;
  std::mutex mutex_;                        // guards everything below
  std::vector<std::vector<Piece>> pieces_;  // by item
  std::vector<bool> was_read_again_;        // by item
};

}  // namespace streamer
