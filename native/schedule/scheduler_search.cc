// The part of the scheduler that looks for the block to hand out next.
#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "schedule/scheduler.h"

namespace streamer {
namespace {

ReadError no_memory_for(const Item& item) {
  ReadError error = error_of(ErrorCode::kOutOfMemory, "the system gives no memory for the next " +
                                                          std::to_string(item.size()) + " bytes");
  error.source = item.source;
  error.begin = item.begin;
  error.end = item.end;
  return error;
}

}  // namespace

std::uint32_t Scheduler::server_of(std::uint32_t source) const {
  return options_.server_of_source.empty() ? 0 : options_.server_of_source.at(source);
}

void Scheduler::count_in_flight(const Block& block, int change) {
  in_flight_[block.device] += change;
  in_flight_at_[server_of(block.source)] += change;
}

bool Scheduler::Search::may_take(std::uint32_t source, TimePoint first_started) {
  if (!admission) return true;
  const std::optional<TimePoint> later = admission(source, first_started);
  if (later) again_at = std::min(*later, again_at.value_or(TimePoint::max()));
  return !later;
}

// Takes the first block whose time has come, whose server may be asked, and that has a slot or
// needs none.
bool Scheduler::take_due(LaneQueue& lane, Search& search) {
  for (auto it = lane.retries.begin(); it != lane.retries.end() && it->first <= search.now; ++it) {
    if (!search.may_take(it->second.source, it->second.first_started)) continue;
    if (!try_give_slot(it->second, search)) {
      lane.readers.note_starved(true);
      continue;
    }
    search.found = std::move(it->second);
    lane.retries.erase(it);
    return true;
  }
  return false;
}

// Considers all servers that may be asked, and all devices that have pinned memory. Returns the
// cutter of the device with the fewest blocks in flight; among equals, that of the server with the
// fewest, so that a slow server does not take the place of others; among equals, the one with the
// first item. Returns null if all were tried.
BlockCutter* Scheduler::most_urgent(LaneQueue& lane, Search& search,
                                    const std::set<const BlockCutter*>& tried) {
  const auto urgency = [this](const BlockCutter& cutter) {
    if (queue_.is_in_item_order()) return std::tuple(0, 0, cutter.item());
    const auto blocks = in_flight_.find(is_on_device(cutter.device()) ? cutter.device() : kHost);
    const auto at_server = in_flight_at_.find(server_of(cutter.source()));
    return std::tuple(blocks == in_flight_.end() ? 0 : blocks->second,
                      at_server == in_flight_at_.end() ? 0 : at_server->second, cutter.item());
  };
  BlockCutter* next = nullptr;
  for (BlockCutter& cutter : lane.cutters) {
    if (cutter.is_exhausted() || tried.contains(&cutter)) continue;
    if (!search.may_take(cutter.source())) continue;
    const bool is_short = search.short_of_slots.contains(cutter.device());
    if (is_short && needs_slot(cutter.device(), cutter.source())) continue;
    if (next == nullptr || urgency(cutter) < urgency(*next)) next = &cutter;
  }
  return next;
}

bool Scheduler::cut_next(LaneQueue& lane, Search& search) {
  std::set<const BlockCutter*> tried;
  while (BlockCutter* const cutter = most_urgent(lane, search, tried)) {
    const std::int32_t device = cutter->device();
    if (cut_from(*cutter, lane, search)) return true;
    // If the memory of this machine is too short for this cutter, no other cutter is tried: its
    // smaller items would take the memory first.
    if (is_stopped_ || unprepared_ || device == kHost) break;
    tried.insert(cutter);
  }
  return false;
}

bool Scheduler::cut_from(BlockCutter& cutter, LaneQueue& lane, Search& search) {
  const Item* const next = search.may_map ? nullptr : cutter.unreserved();
  if (next != nullptr && memory_.is_unprepared(*next)) {
    if (is_preparing_) {
      lane.readers.note_starved();
    } else {
      unprepared_ = *next;
    }
    return false;
  }
  const bool is_idle = lane.in_flight == 0 && lane.retries.empty();
  std::optional<Block>& block = search.found;
  std::uint32_t wanted = cutter.item();
  const auto reserve = [&](std::uint32_t item) { return memory_.reserve(wanted = item); };
  try {
    block = cutter.next(reserve, is_idle);
  } catch (const std::bad_alloc&) {
    fail_locked(no_memory_for(plan_.items[wanted]));
    return false;
  }
  const bool lacks_slot = block && !try_give_slot(*block, search);
  if (lacks_slot) {
    lane.retries.emplace(TimePoint::min(), std::move(*block));
    block.reset();
  }
  if (!block) {
    lane.readers.note_starved(lacks_slot);
    if (has_enough()) is_consumer_to_be_woken_ = true;
  }
  return block.has_value();
}

}  // namespace streamer
