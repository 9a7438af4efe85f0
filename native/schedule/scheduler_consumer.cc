// The part of the scheduler for the consumer: finished items, their memory, and the end of the
// load.
#include <algorithm>
#include <utility>

#include "schedule/scheduler.h"

namespace streamer {
namespace {

// Limits the time that readers wait for the lock.
constexpr std::size_t kMostTakenAtOnce = 256;

}  // namespace

// Whether the consumer should get the finished items now, although it may want more at a time.
bool Scheduler::has_enough() const {
  const auto is_starved = [](const LaneQueue& lane) { return lane.readers.are_starved(); };
  return queue_.has_ready() && (finished_bytes_ >= enough_bytes_ || queue_.has_completed_all() ||
                                std::any_of(lanes_.begin(), lanes_.end(), is_starved));
}

Delivery Scheduler::wait(double timeout_s, std::uint64_t enough_bytes) {
  {
    const Locked lock(*this);
    bounds_.is_consumer_busy = false;
    if (memory_.note_consumer_back()) wake_starved_locked();
  }
  std::unique_lock lock(mutex_);
  enough_bytes_ = enough_bytes;
  const auto has_news = [this] {
    return is_stopped_ || has_enough() || !to_refresh_.empty() || memory_.has_asked() ||
           queue_.has_delivered_all();
  };
  has_delivery_.wait_for(lock, Seconds(timeout_s), has_news);
  spend_time(Clock::now());
  Delivery delivery;
  delivery.error = error_;
  delivery.to_refresh.swap(to_refresh_);
  if (!error_ && !is_stopped_) {
    delivery.items = queue_.deliver();
    for (const std::uint32_t item : delivery.items) {
      stats_.bytes_delivered += plan_.items[item].size();
      finished_bytes_ -= plan_.items[item].size();
    }
    delivery.to_allocate = memory_.take_asked();
    bounds_.is_consumer_busy = !delivery.items.empty();
  }
  delivery.is_finished = is_stopped_ || queue_.has_delivered_all();
  return delivery;
}

void Scheduler::ask_for_memory() {
  memory_.ask();
  if (memory_.has_asked()) is_consumer_to_be_woken_ = true;
}

void Scheduler::limit_memory(std::uint64_t limit_bytes) {
  memory_.set_limit_bytes(std::min(limit_bytes, options_.memory_limit_bytes));
}

void Scheduler::set_memory_limit(std::uint64_t limit_bytes) {
  const Locked lock(*this);
  limit_memory(limit_bytes);
  ask_for_memory();
  wake_starved_locked();
}

std::vector<std::uint32_t> Scheduler::next_to_allocate() {
  const std::lock_guard lock(mutex_);
  return is_stopped_ ? std::vector<std::uint32_t>() : memory_.take_asked();
}

void Scheduler::provide(const std::vector<std::uint32_t>& items,
                        const std::vector<std::byte*>& targets) {
  const Locked lock(*this);
  memory_.provide(items, targets);
  wake_starved_locked();
}

std::vector<Memory> Scheduler::take_items(const std::vector<std::uint32_t>& items) {
  std::vector<Memory> taken;
  taken.reserve(items.size());
  while (taken.size() < items.size()) {
    const Locked lock(*this);
    const std::size_t end = std::min(taken.size() + kMostTakenAtOnce, items.size());
    for (std::size_t i = taken.size(); i < end; ++i) {
      const bool may_take = queue_.may_take(items[i]);
      taken.push_back(may_take ? memory_.take(items[i]) : Memory());
      if (may_take) queue_.take(items[i]);
    }
    ask_for_memory();
    wake_starved_locked();
  }
  return taken;
}

void Scheduler::stop() {
  const Locked lock(*this);
  stop_locked();
}

void Scheduler::release() {
  const std::lock_guard lock(mutex_);
  is_release_asked_ = true;
  release_locked();
}

void Scheduler::end_loan() {
  const std::lock_guard lock(mutex_);
  --loans_;
  if (is_release_asked_) release_locked();
}

void Scheduler::release_locked() {
  if (loans_ == 0) memory_.release();
}

std::map<std::uint32_t, std::uint64_t> Scheduler::peer_bytes() {
  const std::lock_guard lock(mutex_);
  return peer_bytes_;
}

std::vector<std::uint64_t> Scheduler::landed_bytes() {
  const std::lock_guard lock(mutex_);
  return landed_bytes_;
}

SchedulerStats Scheduler::stats() {
  const std::lock_guard lock(mutex_);
  spend_time(Clock::now());
  SchedulerStats stats = stats_;
  stats.bound_s = bounds_.seconds();
  stats.items_delivered = queue_.delivered();
  stats.peak_held_bytes = memory_.peak_held_bytes();
  return stats;
}

}  // namespace streamer
