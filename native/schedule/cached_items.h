// The items of a load that are read from a cache, of this machine or of a peer, instead of their
// objects.
//
// Guarantees: an item counts as right only if every byte of it was read and its CRC32C is the
// recorded one. In every other case it is read from its object, once. A peer that failed is lost
// until it is won back; one that gave wrong bytes stays lost.
//
// add(), holds() and is_lost() are thread-safe. The scheduler calls all other functions under its
// lock.
#pragma once

#include <atomic>
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
  // `server_of_source`: see SchedulerOptions.
  CachedItems(const Plan& plan, std::vector<std::uint32_t> server_of_source);

  bool is_empty() const { return origins_.empty(); }
  // Whether a source is a file of a cache.
  bool holds(std::uint32_t source) const { return files_.contains(source); }
  // Whether a source is not to be read, because its server was lost.
  bool is_lost(std::uint32_t source) const { return holds(source) && lost_[server_of(source)]; }
  // Returns the source of the object that an item belongs to. Returns nothing if the item is not,
  // or no longer, read from the cache.
  std::optional<std::uint32_t> origin(std::uint32_t item) const;

  // Makes an ordinary item one that is read from a peer, which is a source of the plan's peers.
  void expect(const ReleasedItem& released, std::uint32_t origin);
  // Records a block whose bytes are all in place.
  void add(const Block& block);
  // Records that a block could not be read.
  void note_damage(const Block& block);
  // Returns whether the item equals its record. Call this when all blocks of the item are done.
  bool is_right(std::uint32_t item);
  // Returns the CRC32C of an item that is right.
  std::uint64_t crc(std::uint32_t item) { return ledger_.pieces(item).front().value; }
  // Gives up all sources of the server of this one, which holds() items.
  void lose(std::uint32_t source) { lost_[server_of(source)] = true; }
  // The same for a server that gave wrong bytes.
  void distrust(std::uint32_t source) {
    lose(source);
    liars_.insert(server_of(source));
  }
  // Lets a lost server be read again, unless it gave wrong bytes.
  void win_back(std::uint32_t source) {
    if (!liars_.contains(server_of(source))) lost_[server_of(source)] = false;
  }
  // Makes the item an ordinary one, which is no longer read from the cache.
  void leave(std::uint32_t item) { origins_.erase(item); }

 private:
  std::uint32_t server_of(std::uint32_t source) const {
    return servers_.empty() ? source : servers_.at(source);
  }

  const std::vector<std::uint32_t> servers_;        // by source
  std::set<std::uint32_t> files_;                   // sources that are files of a cache
  std::vector<std::atomic<bool>> lost_;             // by server
  std::set<std::uint32_t> liars_;                   // servers
  std::map<std::uint32_t, std::uint32_t> origins_;  // by item
  std::set<std::uint32_t> damaged_;                 // damaged items
  DigestLedger ledger_;
};

}  // namespace streamer
