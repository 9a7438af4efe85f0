// The items of a load that are read from a cache of this machine instead of their objects.
//
// Guarantees: an item counts as right only if every byte of it was read and its CRC32C is the
// recorded one. In every other case it is read from its object, once.
//
// add() is thread-safe. The scheduler calls all other functions under its lock.
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
  // Returns the source of the object that an item belongs to. Returns nothing if the item is not,
  // or no longer, read from the cache.
  std::optional<std::uint32_t> origin(std::uint32_t item) const;

  // Records a block whose bytes are all in place.
  void add(const Block& block);
  // Records that a block could not be read.
  void note_damage(const Block& block);
  // Returns whether the item equals its record. Call this when all blocks of the item are done.
  bool is_right(std::uint32_t item);
  // Makes the item an ordinary one, which is no longer read from the cache.
  void leave(std::uint32_t item) { origins_.erase(item); }

 private:
  std::set<std::uint32_t> files_;                   // sources that are files of the cache
  std::map<std::uint32_t, std::uint32_t> origins_;  // by item
  std::set<std::uint32_t> damaged_;                 // damaged items
  DigestLedger ledger_;
};

}  // namespace streamer
