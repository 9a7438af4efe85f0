// The part of the scheduler that counts the bytes that landed, and decides what happens with an
// item when all its bytes are there.
#include <utility>

#include "schedule/scheduler.h"

namespace streamer {

void Scheduler::count_landed(Lane which, const Block& block) {
  landed_bytes_[block.source] += block.size();
  count_done(which, block);
}

void Scheduler::count_done(Lane which, const Block& block) {
  LaneQueue& lane = queue_of(which);
  --lane.in_flight;
  count_in_flight(block, -1);
  stats_.bytes_landed += block.size();
  for (const Segment& segment : block.destinations) {
    if (segment.item == Segment::kNoItem) continue;
    missing_bytes_[segment.item] -= segment.size;
    if (missing_bytes_[segment.item] == 0) settle(which, segment.item);
  }
  // Readers that lack memory or slots are woken elsewhere, when these are returned. A lane with
  // nothing in flight also accepts blocks that were too short before.
  if (lane.is_finished()) {
    lane.readers.note_work_for_all();
  } else if (lane.readers.are_starved() && lane.in_flight == 0) {
    lane.readers.note_work();
  }
}

void Scheduler::finish_damaged(Lane which, Block block) {
  take_slot_back(block);
  const Locked lock(*this);
  cached_.note_damage(block);
  if (which == Lane::kHttp) cached_.lose(block.source);
  count_done(which, block);
}

void Scheduler::settle(Lane lane, std::uint32_t item) {
  if (const auto origin = cached_.origin(item)) return settle_cached(item, *origin);
  switch (judge(item)) {
    case Verdict::kRight:
      return complete(item);
    case Verdict::kReadAgain:
      forget_in_cache(item);
      ++stats_.rereads;
      return read_again(lane, item);
    case Verdict::kWrong:
      forget_in_cache(item);
      return fail_locked(ledger_.is_wrong(item) ? ledger_.error_of(plan_.items[item], item)
                                                : SealLedger::error_of(plan_.items[item], item));
  }
}

// Judges the digest of an item, and then the authentication tags of its pieces.
Verdict Scheduler::judge(std::uint32_t item) {
  const Verdict digest = ledger_.judge(item);
  if (digest != Verdict::kRight) {
    seals_.discard(item);  // the bytes were not the expected ones
    return digest;
  }
  const Verdict seal = seals_.judge(item);
  if (seal == Verdict::kReadAgain) ledger_.forget(item);
  return seal;
}

void Scheduler::settle_cached(std::uint32_t item, std::uint32_t origin) {
  const bool is_right = cached_.is_right(item) && judge(item) == Verdict::kRight;
  cached_.leave(item);
  const std::uint32_t source = plan_.items[item].source;
  const bool is_of_peer = lane_of_source_[source] == Lane::kHttp;
  const Lane which = lane_of_source_[origin];
  LaneQueue& lane = queue_of(which);
  --lane.expected;
  plan_.items[item].source = origin;
  if (is_right) {
    const Item& own = plan_.items[item];
    (is_of_peer ? peer_bytes_[source] : stats_.cached_bytes) += own.size();
    if (tap_ != nullptr) tap_->confirm(source, own.begin, own.end, cached_.crc(item));
    complete(item);
    if (lane.is_finished()) lane.readers.note_work_for_all();
    return;
  }
  if (is_of_peer) cached_.distrust(source);
  ++stats_.cache_failures;
  ledger_.forget(item);
  seals_.forget(item);
  forget_in_cache(item);
  read_again(which, item);
}

void Scheduler::forget_in_cache(std::uint32_t index) {
  const Item& item = plan_.items[index];
  if (tap_ != nullptr) tap_->forget(item.source, item.begin, item.end);
}

void Scheduler::read_again(Lane which, std::uint32_t index) {
  const Item& item = plan_.items[index];
  missing_bytes_[index] = item.size();
  LaneQueue& lane = queue_of(which);
  const Span span{item.source, item.begin, item.end, index, 1};
  BlockCutter cutter(plan_.items, {span}, block_bytes_of(static_cast<std::size_t>(which)));
  // The item kept its memory from the first read.
  const auto has_memory = [](std::uint32_t) { return true; };
  while (auto block = cutter.next(has_memory, true)) {
    block->is_reread = true;
    block->attempts = 1;  // makes HTTP use a new connection
    block->first_started = Clock::now();
    lane.retries.emplace(TimePoint{}, std::move(*block));
  }
  lane.readers.note_work();
}

void Scheduler::complete(std::uint32_t item) {
  queue_.complete(item);
  finished_bytes_ += plan_.items[item].size();
  if (has_enough()) is_consumer_to_be_woken_ = true;
}

}  // namespace streamer
