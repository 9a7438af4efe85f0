#include "schedule/scheduler.h"

#include <algorithm>
#include <new>
#include <string>
#include <tuple>
#include <utility>

namespace streamer {
Scheduler::Scheduler(Plan plan, const std::vector<Lane>& lane_of_source,
                     const SchedulerOptions& options)
    : options_(options),
      ledger_(std::move(plan.digests)),
      seals_(std::move(plan.seals), plan.items),
      plan_(std::move(plan)),
      lane_of_source_(lane_of_source),
      cached_(plan_, options.server_of_source),
      missing_bytes_(plan_.items.size()),
      queue_(plan_.items.size(), options.in_item_order),
      memory_(plan_.items, queue_, options.memory_limit_bytes, plan_.held_back),
      rate_(options.max_bytes_per_second),
      landed_bytes_(lane_of_source.size()) {
  std::map<Queue, std::vector<Span>> spans;
  for (const Span& span : plan_.spans) spans[queue_for(span)].push_back(span);
  for (auto& [queue, own] : spans) {
    const std::size_t lane = std::get<0>(queue);
    lanes_[lane].cutters.emplace_back(plan_.items, std::move(own), block_bytes_of(lane));
  }
  const std::lock_guard lock(mutex_);
  for (const CachedItem& cached : plan_.cached) ++queue_of(lane_of_source_[cached.origin]).expected;
  for (const std::uint32_t item : plan_.held_back) {
    if (!held_back_.insert(item).second) continue;
    for (const Lane lane : lanes_for(item)) ++queue_of(lane).expected;
  }
  if (options.first_memory_limit_bytes > 0) limit_memory(options.first_memory_limit_bytes);
  for (std::uint32_t i = 0; i < plan_.items.size(); ++i) {
    missing_bytes_[i] = plan_.items[i].size();
    if (missing_bytes_[i] == 0) complete(i);
  }
  ask_for_memory();
}

Scheduler::Queue Scheduler::queue_for(const Span& span) const {
  const std::int32_t device = span.item_count > 0 ? plan_.items[span.first_item].device : kHost;
  return {static_cast<std::size_t>(lane_of_source_[span.source]), server_of(span.source), device};
}

// Blocks of what is encrypted or hashed contain only whole pieces.
BlockCutter::BlockBytes Scheduler::block_bytes_of(std::size_t lane) const {
  const std::uint64_t piece = std::max(seals_.piece_bytes(), ledger_.piece_bytes());
  if (piece == 1) return wanted_block_bytes_of(lane);
  return [wanted = wanted_block_bytes_of(lane), piece](std::uint32_t source) {
    return std::max(piece, wanted(source) / piece * piece);
  };
}

BlockCutter::BlockBytes Scheduler::wanted_block_bytes_of(std::size_t lane) const {
  const bool follows_server =
      lane == static_cast<std::size_t>(Lane::kHttp) && options_.http_block_bytes;
  if (follows_server) {
    return [this, most = options_.block_bytes[lane]](std::uint32_t source) {
      return std::min(most, options_.http_block_bytes(source));
    };
  }
  return [fixed = options_.block_bytes[lane]](std::uint32_t) { return fixed; };
}

std::optional<Block> Scheduler::take(Lane which) {
  return after_lock(wait_for_block(which, false, {})).block;
}

std::optional<Block> Scheduler::lend(Lane which, const Admission& admission) {
  TakeResult taken = wait_for_block(which, true, admission);
  const bool is_lent = taken.block.has_value();
  try {
    std::optional<Block> block = after_lock(std::move(taken)).block;
    if (is_lent && !block) end_loan();
    return block;
  } catch (...) {
    if (is_lent) end_loan();
    throw;
  }
}

TakeResult Scheduler::wait_for_block(Lane which, bool is_loan, const Admission& admission) {
  LaneQueue& lane = queue_of(which);
  TimePoint now = Clock::now();  // not under the lock, because other threads wait for the lock
  std::unique_lock lock(mutex_);
  for (;; now = Clock::now()) {
    TakeResult result = take_prepared(lock, lane, now, admission);
    if (result.block && is_loan) ++loans_;  // before another thread can release the block's memory
    if (result.block || result.is_finished) {
      const bool may_be_more =
          !lane.readers.are_starved() || devices_.size() > 1;  // for another device
      const bool is_there_more = result.block && may_be_more && lane.readers.note_next();
      unlock_and_wake(lock);
      if (is_there_more) lane.readers.wake_next();
      return result;
    }
    // If a reader lacks memory, the consumer is woken to take finished items.
    if (std::exchange(is_consumer_to_be_woken_, false)) has_delivery_.notify_all();
    lane.readers.wait(lock, result.retry_at);
  }
}

TakeResult Scheduler::try_take(Lane which, TimePoint now, const Admission& admission) {
  std::unique_lock lock(mutex_);
  TakeResult result = take_prepared(lock, queue_of(which), now, admission);
  unlock_and_wake(lock);
  return after_lock(std::move(result));
}

// Looks for a block. If the search needs memory that is not mapped, maps it without the lock and
// looks again.
TakeResult Scheduler::take_prepared(std::unique_lock<std::mutex>& lock, LaneQueue& lane,
                                    TimePoint now, const Admission& admission) {
  TakeResult result = try_take_locked(lane, now, admission, false);
  const auto item = std::exchange(unprepared_, std::nullopt);
  if (!item) return result;
  is_preparing_ = true;
  unlock_and_wake(lock);
  try {
    memory_.prepare(*item);
  } catch (const std::bad_alloc&) {  // the allocation will report the failure
  }
  lock.lock();
  is_preparing_ = false;
  wake_starved_locked();  // readers that came meanwhile
  unlock_and_wake(lock);
  lock.lock();
  result = try_take_locked(lane, now, admission, true);
  result.is_trim_due = result.block.has_value();
  return result;
}

TakeResult Scheduler::try_take_locked(LaneQueue& lane, TimePoint now, const Admission& admission,
                                      bool may_map) {
  TakeResult result;
  spend_time(now);
  if (is_stopped_ || lane.is_finished()) {
    result.is_finished = true;
    return result;
  }
  if (const auto later = rate_.closed_until(now)) {
    result.retry_at = later;
    return result;
  }
  Search search{.admission = admission, .now = now, .found = result.block, .may_map = may_map};
  const bool is_found = take_due(lane, search) || cut_next(lane, search);
  if (is_stopped_) {  // there was no memory for the next tensor
    result.is_finished = true;
  } else if (is_found) {
    ++lane.in_flight;
    count_in_flight(*result.block, 1);
    ++stats_.blocks;
    rate_.record(result.block->size() - result.block->received, now);
  } else {
    result.retry_at = search.again_at;
    const auto next_due = lane.retries.upper_bound(now);
    if (next_due != lane.retries.end()) {
      result.retry_at = std::min(next_due->first, search.again_at.value_or(TimePoint::max()));
    }
  }
  return result;
}

void Scheduler::finish(Lane which, Block block) {
  const bool is_gpudirect = is_read_by_gpudirect(block);
  if (!is_gpudirect) check_bytes(block);  // before the lock, because this reads every byte
  const Locked lock(*this);
  if (is_gpudirect) stats_.gpudirect_bytes += block.size();
  if (block.device == kHost || is_gpudirect) {
    count_landed(which, block);
  } else if (!is_stopped_) {
    devices_.at(block.device).sink->submit(which, std::move(block));  // in flight until it landed
  }
}

void Scheduler::check_bytes(Block& block) {
  TimePoint began = trace_ != nullptr ? Clock::now() : TimePoint{};
  const auto note = [&](const char* category) {
    if (trace_ == nullptr) return;
    trace_->add({.category = category,
                 .source = block.source,
                 .offset = block.begin,
                 .bytes = block.size()},
                began);
    began = Clock::now();
  };
  cached_.add(block);
  ledger_.add(block);
  if (!ledger_.is_empty()) note("verify");
  // What a peer sent is compared with its record only when the item is complete.
  if (tap_ != nullptr) tap_->offer(block, !cached_.holds(block.source));
  seals_.decrypt(block);  // last, because digests and the cache need the bytes of the object
  if (!seals_.is_empty()) note("decode");
}

void Scheduler::retry_at(Lane which, Block block, TimePoint due) {
  const Locked lock(*this);
  ++stats_.retries;
  queue_again(queue_of(which), std::move(block), due);
}

void Scheduler::requeue(Lane which, Block block, TimePoint due) {
  const Locked lock(*this);
  queue_again(queue_of(which), std::move(block), due);
}

void Scheduler::queue_again(LaneQueue& lane, Block block, TimePoint due) {
  --lane.in_flight;
  count_in_flight(block, -1);
  if (is_stopped_) return;  // the slot of the block goes back to its ring
  if (block.received == 0) take_slot_back(block);
  lane.retries.emplace(due, std::move(block));
  lane.readers.note_work();
}

void Scheduler::fail(ReadError error) {
  const Locked lock(*this);
  fail_locked(std::move(error));
}

void Scheduler::fail_locked(ReadError error) {
  if (!error_ && !is_stopped_) error_ = std::move(error);
  stop_locked();
}

void Scheduler::ask_refresh(std::uint32_t source) {
  const Locked lock(*this);
  to_refresh_.push_back(source);
  is_consumer_to_be_woken_ = true;
}

void Scheduler::stop_locked() {
  is_stopped_ = true;
  for (LaneQueue& lane : lanes_) {
    lane.retries.clear();  // returns the slots of these blocks
    lane.readers.note_work_for_all();
  }
  is_consumer_to_be_woken_ = true;
}

void Scheduler::unlock_and_wake(std::unique_lock<std::mutex>& lock) {
  std::array<LaneReaders::Woken, kLaneCount> woken{};
  for (std::size_t i = 0; i < kLaneCount; ++i) woken[i] = lanes_[i].readers.take_woken();
  const bool is_consumer_woken = std::exchange(is_consumer_to_be_woken_, false);
  lock.unlock();
  if (is_consumer_woken) has_delivery_.notify_all();
  for (std::size_t i = 0; i < kLaneCount; ++i) lanes_[i].readers.notify(woken[i]);
}

// Attributes the time up to now to what bounded the load, before that changes.
void Scheduler::spend_time(TimePoint now) {
  std::bitset<kBounds> bounds;
  bool are_slots_short = false;
  bool is_memory_short = false;
  for (std::size_t i = 0; i < kLaneCount; ++i) {
    const LaneReaders& readers = lanes_[i].readers;
    are_slots_short |= readers.are_slots_short();
    is_memory_short |= readers.are_starved() && !readers.are_slots_short();
    bounds[i] = lanes_[i].in_flight > 0;
  }
  if (is_stopped_) {
    bounds.reset();
  } else if (queue_.has_completed_all() || (is_memory_short && bounds_.is_consumer_busy)) {
    bounds.reset().set(kConsumerBound);
  } else if (is_memory_short) {
    bounds.reset().set(kMemoryBound);
  } else if (are_slots_short) {
    bounds.reset().set(kSlotsBound);
  } else if (bounds.none()) {  // all blocks wait for their retries
    for (std::size_t i = 0; i < kLaneCount; ++i) bounds[i] = !lanes_[i].is_finished();
  }
  bounds_.spend(now, bounds);
}

void Scheduler::wake_starved_locked() {
  for (LaneQueue& lane : lanes_) {
    if (lane.readers.are_starved()) lane.readers.note_work();
  }
}

void Scheduler::wake_starved() {
  const Locked lock(*this);
  wake_starved_locked();
}

void Scheduler::add_waker(Lane which, std::function<void()> waker) {
  queue_of(which).readers.add_waker(std::move(waker));
}

void Scheduler::remove_wakers() {
  for (LaneQueue& lane : lanes_) lane.readers.remove_wakers();
}

}  // namespace streamer
