#include "schedule/cached_items.h"

#include <algorithm>
#include <utility>

namespace streamer {
namespace {

DigestPlan checksums_of(const Plan& plan) {
  DigestPlan digests;
  if (plan.cached.empty() && plan.peers.empty()) return digests;
  digests.items.resize(plan.items.size());
  for (const CachedItem& cached : plan.cached) {
    digests.items[cached.item] = {Crc::kCrc32c, cached.crc, plan.items[cached.item].source};
  }
  return digests;
}

std::size_t count_of(const Plan& plan, const std::vector<std::uint32_t>& servers) {
  std::uint32_t last = 0;
  const auto count = [&](std::uint32_t source) {
    last = std::max(last, servers.empty() ? source : servers.at(source));
  };
  for (const CachedItem& cached : plan.cached) count(plan.items[cached.item].source);
  for (const std::uint32_t peer : plan.peers) count(peer);
  return last + std::size_t{1};
}

}  // namespace

CachedItems::CachedItems(const Plan& plan, std::vector<std::uint32_t> server_of_source)
    : servers_(std::move(server_of_source)),
      lost_(count_of(plan, servers_)),
      ledger_(checksums_of(plan)) {
  files_.insert(plan.peers.begin(), plan.peers.end());
  for (const CachedItem& cached : plan.cached) {
    origins_[cached.item] = cached.origin;
    files_.insert(plan.items[cached.item].source);
  }
}

std::optional<std::uint32_t> CachedItems::origin(std::uint32_t item) const {
  const auto found = origins_.find(item);
  return found == origins_.end() ? std::nullopt : std::optional(found->second);
}

void CachedItems::expect(const ReleasedItem& released, std::uint32_t origin) {
  origins_[released.item] = origin;
  ledger_.expect(released.item, {Crc::kCrc32c, released.crc, released.source});
}

void CachedItems::add(const Block& block) {
  if (holds(block.source)) ledger_.add(block);
}

void CachedItems::note_damage(const Block& block) {
  for (const Segment& segment : block.destinations) {
    if (segment.item != Segment::kNoItem) damaged_.insert(segment.item);
  }
}

bool CachedItems::is_right(std::uint32_t item) {
  return !damaged_.contains(item) && ledger_.judge(item) == Verdict::kRight;
}

}  // namespace streamer
