// Memory that comes back wakes one reader, and each that finds a block wakes the next.
#include <doctest/doctest.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "schedule/scheduler.h"

namespace streamer {
namespace {

constexpr std::uint32_t kReaders = 8;
constexpr std::uint32_t kRounds = 100;
constexpr std::uint64_t kItemBytes = 64;

// One item for each reader in each round, which nobody lands before all have theirs.
class Rounds {
 public:
  // Whether all readers got their blocks of this round.
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

TEST_CASE("memory for all readers that wait reaches each, although one at a time is woken") {
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
    scheduler.take_items(std::exchange(finished, {}));  // while all readers wait, or soon will
  }
  for (std::thread& reader : readers) reader.join();
  CHECK(scheduler.stats().items_delivered == kReaders * kRounds);
}

}  // namespace
}  // namespace streamer
