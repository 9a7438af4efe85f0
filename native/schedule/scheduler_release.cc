// The part of the scheduler that hands out items that were held back until their source is known.
#include <algorithm>
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
    Item& item = plan_.items[released.item];
    if (released.source == item.source) {
      --queue_of(lane_of_source_[item.source]).expected;
    } else {  // until it is settled, its object is expected to be read
      cached_.expect(released, item.source);
      item.source = released.source;
    }
    const Span span{item.source, item.begin, item.end, released.item, 1};
    append(spans[queue_for(span)], span);
  }
  for (auto& [queue, own] : spans) {
    const std::size_t lane = std::get<0>(queue);
    lanes_[lane].cutters.emplace_back(plan_.items, std::move(own), block_bytes_of(lane));
    lanes_[lane].readers.note_work_for_all();
  }
}

}  // namespace streamer
