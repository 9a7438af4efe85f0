// The items of a load that are read from a cache of this machine, instead of from their objects.
//
// Guarantees: an item is right only if every byte of it was read and their CRC32C is the recorded
// one. Whatever else becomes of it, it is read from its object, once.
//
// add() is thread-safe; the rest is for the scheduler, under its lock.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "plan/plan.h"
#include "schedule/digest_ledger.h"

namespace streamer {

class CachedItems {
 public:
  explicit CachedItems(const Plan& plan);

  bool is_empty() const { return origins_.empty(); }
  // Whether a source is a file of the cache.
  bool holds(std::uint32_t source) const { return files_.contains(source); }
  // The source of the object that an item belongs to; none where it is not read from the cache (any
  // more).
  std::optional<std::uint32_t> origin(std::uint32_t item) const;

  // A block whose bytes are all in place.
  void add(const Block& block);
  // A block that could not be read.
  void note_damage(const Block& block);
  // All blocks of a cached item are done: whether it is as it was recorded.
  bool is_right(std::uint32_t item);
  // From here on it is an item like any other.
  void leave(std::uint32_t item) { origins_.erase(item); }

 private:
  std::set<std::uint32_t> files_;                   // sources
  std::map<std::uint32_t, std::uint32_t> origins_;  // by item
  std::set<std::uint32_t> damaged_;                 // items
  DigestLedger ledger_;
};

}  // namespace streamer
