// Digests of items, computed block by block as the blocks land. Also decides what happens with an
// item whose digest is not the expected one.
//
// Guarantees: every byte of a wanted item goes into its digest once, whatever the order of its
// blocks. An item is judged right only if its digest is the expected one. A wrong item is read once
// more; if it is wrong again, that is final. An empty plan costs nothing.
//
// Thread-safe. Digests are computed outside the lock, on the thread of the reader.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/read_error.h"
#include "integrity/crc.h"
#include "plan/plan.h"

namespace streamer {

// The digest of consecutive bytes of one item.
struct Piece {
  std::uint64_t begin = 0;  // offset in the object
  std::uint64_t bytes = 0;
  std::uint64_t value = 0;
};

enum class Verdict : std::uint8_t { kRight, kReadAgain, kWrong };

class DigestLedger {
 public:
  explicit DigestLedger(DigestPlan plan);

  bool is_empty() const { return plan_.items.empty(); }
  std::uint64_t piece_bytes() const { return piece_bytes_; }

  // Sets what is expected of an item of which nothing was added. No other thread may add to the
  // item meanwhile.
  void expect(std::uint32_t item, const ItemDigest& digest) { plan_.items.at(item) = digest; }
  // Adds a block whose bytes are all in place.
  void add(const Block& block);
  // Judges an item. Call this after all bytes of the item were added.
  Verdict judge(std::uint32_t item);
  // Whether a judged item has another digest than the expected one.
  bool is_wrong(std::uint32_t item);
  // Discards the added bytes of an item, because it is read again from another source.
  void forget(std::uint32_t item);
  // Returns the pieces of a judged item, in order: one piece, or one between every two cuts.
  std::vector<Piece> pieces(std::uint32_t item);
  // Returns the hash of a judged item that is hashed.
  Hash hash(std::uint32_t item);
  // Returns the error for an item that was judged wrong.
  ReadError error_of(const Item& item, std::uint32_t index);

 private:
  // Adds bytes of one item, which begin at `begin` in the object.
  void add_bytes(std::span<const std::byte> bytes, std::uint32_t item, std::uint32_t source,
                 std::uint64_t begin);
  bool has_digest(std::uint32_t item) const {
    return plan_.items[item].code || plan_.items[item].is_hashed;
  }
  bool is_expected(std::uint32_t item) const;
  std::uint64_t next_cut(std::uint32_t source, std::uint64_t after) const;
  std::vector<Piece> joined_pieces(std::uint32_t item) const;
  Hash hash_of(std::uint32_t item) const;
  std::uint64_t whole(std::uint32_t item) const;

  DigestPlan plan_;
  const std::uint64_t piece_bytes_;
  std::mutex mutex_;                             // guards everything below
  std::vector<std::vector<Piece>> pieces_;       // by item
  std::map<std::uint32_t, PieceHashes> hashes_;  // by item
  std::vector<bool> was_read_again_;             // by item
};

}  // namespace streamer
