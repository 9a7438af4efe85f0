#include "schedule/cached_items.h"

#include <algorithm>
#include <utility>

namespace streamer {
namespace {

DigestPlan checksums_of(const Plan& plan) {
  DigestPlan digests;
  if (plan.cached.empty()) return digests;
  digests.items.resize(plan.items.size());
  for (const CachedItem& cached : plan.cached) {
    digests.items[cached.item] = {Crc::kCrc32c, cached.crc, plan.items[cached.item].source};
  }
  return digests;
}

std::size_t count_of(const Plan& plan, const std::vector<std::uint32_t>& servers) {
  std::uint32_t last = 0;
  for (const CachedItem& cached : plan.cached) {
    const std::uint32_t source = plan.items[cached.item].source;
    last = std::max(last, servers.empty() ? source : servers.at(source));
  }
  return last + std::size_t{1};
}

}  // namespace

CachedItems::CachedItems(const Plan& plan, std::vector<std::uint32_t> server_of_source)
    : servers_(std::move(server_of_source)),
      lost_(count_of(plan, servers_)),
      ledger_(checksums_of(plan)) {
  for (const CachedItem& cached : plan.cached) {
    origins_[cached.item] = cached.origin;
    files_.insert(plan.items[cached.item].source);
  }
}

std::optional<std::uint32_t> CachedItems::origin(std::uint32_t item) const {
  const auto found = origins_.find(item);
  return found == origins_.end() ? std::nullopt : std::optional(found->second);
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
