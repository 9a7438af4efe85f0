// The part of the scheduler that hands out items that were held back until their source is known.
#include <algorithm>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "schedule/scheduler.h"

namespace streamer {
namespace {

// Joins neighbouring items of one source, so that many small ones need one request.
void append(std::vector<Span>& spans, const Span& span) {
  if (!spans.empty()) {
    Span& last = spans.back();
    const bool follows = last.source == span.source && last.end == span.begin &&
                         last.first_item + last.item_count == span.first_item;
    if (follows) {
      last.end = span.end;
      ++last.item_count;
      return;
    }
  }
  spans.push_back(span);
}

}  // namespace

void Scheduler::release(std::vector<ReleasedItem> items) {
  // A cutter reads its spans one after the other: no item may wait for memory before an earlier
  // one.
  std::stable_sort(
      items.begin(), items.end(),
      [](const ReleasedItem& one, const ReleasedItem& other) { return one.item < other.item; });
  const Locked lock(*this);
  if (is_stopped_) return;
  std::map<Queue, std::vector<Span>> spans;
  for (const ReleasedItem& released : items) {
    if (held_back_.erase(released.item) == 0) continue;
    memory_.want(released.item);
    Item& item = plan_.items[released.item];
    for (const Lane lane : lanes_for(released.item)) --queue_of(lane).expected;
    if (released.source != item.source) {  // until it is settled, its object is expected to be read
      ++queue_of(lane_of_source_[item.source]).expected;
      cached_.expect(released, item.source);
      item.source = released.source;
    }
    const Span span{item.source, item.begin, item.end, released.item, 1};
    append(spans[queue_for(span)], span);
  }
  for (LaneQueue& lane : lanes_) {  // each search looks at all cutters
    std::erase_if(lane.cutters, [](const BlockCutter& cutter) { return cutter.is_exhausted(); });
  }
  for (auto& [queue, own] : spans) {
    const std::size_t lane = std::get<0>(queue);
    lanes_[lane].cutters.emplace_back(plan_.items, std::move(own), block_bytes_of(lane));
  }
  for (LaneQueue& lane : lanes_) lane.readers.note_work_for_all();  // one may be finished now
  ask_for_memory();
}

// Returns the lanes that may read the item: the lane of its object, and the lane of the peers.
std::set<Lane> Scheduler::lanes_for(std::uint32_t held_back) const {
  std::set<Lane> lanes{lane_of_source_[plan_.items[held_back].source]};
  if (!plan_.peers.empty()) lanes.insert(lane_of_source_[plan_.peers.front()]);
  return lanes;
}

std::vector<std::uint32_t> Scheduler::lost_peers() {
  const std::lock_guard lock(mutex_);
  std::vector<std::uint32_t> lost;
  std::ranges::copy_if(plan_.peers, std::back_inserter(lost),
                       [this](std::uint32_t peer) { return cached_.is_lost(peer); });
  return lost;
}

void Scheduler::win_back(std::uint32_t source) {
  const std::lock_guard lock(mutex_);
  cached_.win_back(source);
}

}  // namespace streamer
