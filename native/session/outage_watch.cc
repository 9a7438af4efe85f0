#include "session/outage_watch.h"

#include <map>
#include <optional>

namespace streamer {

OutageWatch::OutageWatch(const std::vector<std::shared_ptr<Endpoint>>& endpoints) {
  const TimePoint now = Clock::now();
  std::map<std::shared_ptr<Endpoint>, std::uint32_t> numbers;
  for (const auto& endpoint : endpoints) {
    const auto number = static_cast<std::uint32_t>(numbers.size());
    const auto [entry, is_new] = numbers.try_emplace(endpoint, number);
    server_of_source_.push_back(entry->second);
    if (is_new && endpoint) servers_.push_back({endpoint, endpoint->totals(now)});
  }
}

std::vector<OpenOutage> OutageWatch::open(TimePoint now) const {
  std::vector<OpenOutage> open;
  for (const Server& server : servers_) {
    const std::optional<OutageRecord> outage = server.endpoint->outage();
    if (!outage) continue;
    open.push_back({server.endpoint->name(), seconds_between(outage->since, now), outage->probes,
                    summary_of(outage->last_failure)});
  }
  return open;
}

OutageTotals OutageWatch::totals(TimePoint now) const {
  OutageTotals sum;
  for (const Server& server : servers_) {
    const OutageTotals present = server.endpoint->totals(now);
    sum.outages += present.outages - server.before.outages;
    sum.probes += present.probes - server.before.probes;
    sum.waited_s += present.waited_s - server.before.waited_s;
  }
  return sum;
}

}  // namespace streamer
