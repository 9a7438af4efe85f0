// Only one waiting reader is woken at a time, and each reader that finds a block wakes the next
// one.
#include "schedule/lane_readers.h"

#include <doctest/doctest.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "schedule/scheduler.h"

namespace streamer {
namespace {

constexpr std::uint32_t kReaders = 8;
constexpr std::uint32_t kRounds = 100;
constexpr std::uint64_t kItemBytes = 64;

// One item for each reader in each round. No item lands before all readers have theirs.
class Rounds {
 public:
  // Returns whether all readers got their blocks of this round.
  bool hold_until_all_have_one() {
    std::unique_lock lock(mutex_);
    const std::uint32_t all = (blocks_++ / kReaders + 1) * kReaders;
    has_block_.notify_all();
    return has_block_.wait_for(lock, std::chrono::seconds(10), [&] { return blocks_ >= all; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable has_block_;
  std::uint32_t blocks_ = 0;
};

// Threads that wait like the readers of a scheduler, until they are told to stop.
class Waiters {
 public:
  explicit Waiters(std::uint32_t count) {
    for (std::uint32_t i = 0; i < count; ++i) threads_.emplace_back([this] { wait(); });
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waits_ == count; });
  }
  ~Waiters() {
    note([&] {
      may_leave_ = true;
      readers_.note_work_for_all();
    });
    for (std::thread& thread : threads_) thread.join();
  }

  LaneReaders& readers() { return readers_; }

  // Notes an event under the lock, and notifies after it.
  template <typename Noted>
  LaneReaders::Woken note(const Noted& noted) {
    std::unique_lock lock(mutex_);
    noted();
    const LaneReaders::Woken woken = readers_.take_woken();
    lock.unlock();
    readers_.notify(woken);
    return woken;
  }

  // Waits until threads have looked `looks` times, and wait again.
  bool have_looked(std::uint32_t looks) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(10), [&] { return looks_ >= looks; });
  }

 private:
  void wait() {
    std::unique_lock lock(mutex_);
    ++waits_;
    changed_.notify_all();
    while (!may_leave_) {
      readers_.wait(lock, std::nullopt);
      ++looks_;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  LaneReaders readers_;
  std::uint32_t waits_ = 0, looks_ = 0;
  bool may_leave_ = false;
  std::vector<std::thread> threads_;
};

using Woken = LaneReaders::Woken;

TEST_CASE("without an event no reader is woken, and an event wakes reactors once") {
  LaneReaders readers;
  std::uint32_t calls = 0;
  readers.add_waker([&] { ++calls; });
  readers.notify(readers.take_woken());
  CHECK(calls == 0);
  readers.note_work();
  readers.notify(readers.take_woken());
  readers.notify(readers.take_woken());
  CHECK(calls == 1);
  readers.remove_wakers();
  readers.note_work_for_all();
  readers.notify(readers.take_woken());
  CHECK(calls == 1);
}

TEST_CASE("readers are starved until there may be work") {
  LaneReaders readers;
  CHECK(!readers.are_starved());
  readers.note_starved();
  CHECK(readers.are_starved());
  readers.note_work();
  CHECK(!readers.are_starved());
}

TEST_CASE("one waiting thread is notified, and no other one before it has looked") {
  Waiters waiters(2);
  std::vector<Woken> woken;
  bool is_next = true;
  CHECK(waiters.note([&] {
    waiters.readers().note_work();
    woken.push_back(waiters.readers().take_woken());
    waiters.readers().note_work();
    woken.push_back(waiters.readers().take_woken());
    is_next = waiters.readers().note_next();
  }) == Woken::kNone);
  CHECK(woken == std::vector{Woken::kOne, Woken::kReactors});
  CHECK(!is_next);
  waiters.readers().notify(Woken::kOne);
  REQUIRE(waiters.have_looked(1));
  CHECK(waiters.note([&] { waiters.readers().note_work(); }) == Woken::kOne);
  CHECK(waiters.have_looked(2));
}

TEST_CASE("all threads are notified if all must look") {
  Waiters waiters(3);
  CHECK(waiters.note([&] { waiters.readers().note_work_for_all(); }) == Woken::kAll);
  CHECK(waiters.have_looked(3));
}

TEST_CASE("a thread waits no longer than the given time") {
  std::mutex mutex;
  std::unique_lock lock(mutex);
  LaneReaders readers;
  readers.wait(lock, Clock::now() + std::chrono::milliseconds(1));
  CHECK(lock.owns_lock());
  CHECK(!readers.note_next());  // no thread waits any more
}

TEST_CASE("memory for all waiting readers reaches each of them, although one is woken at a time") {
  Plan plan;
  for (std::uint32_t i = 0; i < kReaders * kRounds; ++i) {
    plan.items.push_back({0, i * kItemBytes, (i + 1) * kItemBytes});
  }
  plan.spans.push_back({0, 0, plan.items.back().end, 0, kReaders * kRounds});
  Scheduler scheduler(std::move(plan), {Lane::kFile},
                      {.block_bytes = {kItemBytes, kItemBytes, kItemBytes},
                       .memory_limit_bytes = kReaders * kItemBytes});
  Rounds rounds;
  std::vector<std::thread> readers;
  for (std::uint32_t i = 0; i < kReaders; ++i) {
    readers.emplace_back([&] {
      while (auto block = scheduler.take(Lane::kFile)) {
        if (!rounds.hold_until_all_have_one()) scheduler.stop();
        scheduler.finish(Lane::kFile, std::move(*block));
      }
    });
  }
  std::vector<std::uint32_t> finished;
  for (bool is_finished = false; !is_finished;) {
    const Delivery delivery = scheduler.wait(20);
    is_finished = delivery.is_finished;
    finished.insert(finished.end(), delivery.items.begin(), delivery.items.end());
    if (finished.size() < kReaders) continue;
    CHECK(finished.size() == kReaders);
    scheduler.take_items(std::exchange(finished, {}));  // while all readers wait, or are about to
  }
  for (std::thread& reader : readers) reader.join();
  CHECK(scheduler.stats().items_delivered == kReaders * kRounds);
}

}  // namespace
}  // namespace streamer
