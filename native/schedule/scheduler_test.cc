#include "schedule/scheduler.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <set>
#include <thread>
#include <vector>

namespace streamer {
namespace {

SchedulerOptions options_of(std::uint64_t limit, bool in_item_order = false) {
  return {.block_bytes = {64, 64, 64}, .memory_limit_bytes = limit, .in_item_order = in_item_order};
}

// Returns `count` items of `size` bytes, one after the other, in one span of source 0.
Plan plan_of(std::uint32_t count, std::uint64_t size) {
  Plan plan;
  for (std::uint32_t i = 0; i < count; ++i) plan.items.push_back({0, i * size, (i + 1) * size});
  plan.spans.push_back({0, 0, count * size, 0, count});
  return plan;
}

// Starts readers whose sources answer at once. They end when there is nothing more to read.
std::vector<std::thread> readers_of(Scheduler& scheduler, int count) {
  std::vector<std::thread> readers;
  for (int i = 0; i < count; ++i) {
    readers.emplace_back([&scheduler] {
      while (auto block = scheduler.take(Lane::kFile)) {
        scheduler.finish(Lane::kFile, std::move(*block));
      }
    });
  }
  return readers;
}

ReadError some_error(const char* detail) {
  ReadError error;
  error.detail = detail;
  return error;
}

TEST_CASE("every item is delivered exactly once, whatever the number of readers") {
  Scheduler scheduler(plan_of(500, 100), {Lane::kFile}, options_of(2000));
  std::vector<std::thread> readers = readers_of(scheduler, 4);
  std::set<std::uint32_t> seen;
  for (bool is_finished = false; !is_finished;) {
    const Delivery delivery = scheduler.wait(5);
    for (const std::uint32_t item : delivery.items) {
      CHECK(seen.insert(item).second);
      CHECK(scheduler.take_item(item).size() == 100);
    }
    is_finished = delivery.is_finished;
  }
  for (std::thread& reader : readers) reader.join();
  CHECK(seen.size() == 500);
  CHECK(scheduler.stats().peak_held_bytes <= 2000);
  CHECK(scheduler.stats().bytes_delivered == 50'000);
}

TEST_CASE("readers that wait for memory wake each other, and none sleeps forever") {
  for (const bool in_item_order : {false, true}) {
    Scheduler scheduler(plan_of(5000, 64), {Lane::kFile}, options_of(3 * 64, in_item_order));
    std::vector<std::thread> readers;
    std::atomic<int> running = 32;
    for (int i = 0; i < 32; ++i) {
      readers.emplace_back([&] {
        while (auto block = scheduler.take(Lane::kFile)) {
          scheduler.finish(Lane::kFile, std::move(*block));
        }
        --running;
      });
    }
    std::uint32_t taken = 0;
    for (bool is_finished = false; !is_finished;) {
      const Delivery delivery = scheduler.wait(5);
      for (const std::uint32_t item : delivery.items) {
        scheduler.take_item(item);
        ++taken;
      }
      is_finished = delivery.is_finished;
      REQUIRE((is_finished || !delivery.items.empty()));
    }
    for (std::thread& reader : readers) reader.join();
    CHECK(taken == 5000);
    CHECK(running == 0);
  }
}

TEST_CASE("readers prepare the memory of large items, one at a time, and all are delivered") {
  // One size has its own mappings, and the other shares chunks. The tests do not touch the pages.
  for (const std::uint64_t size : {kOwnMappingBytes + 4096, std::size_t{600} << 10}) {
    for (const bool in_item_order : {false, true}) {
      SchedulerOptions options = options_of(3 * size, in_item_order);
      options.block_bytes = {1 << 20, 1 << 20, 1 << 20};
      Scheduler scheduler(plan_of(200, size), {Lane::kFile}, options);
      std::vector<std::thread> readers = readers_of(scheduler, 4);
      std::uint32_t taken = 0;
      for (bool is_finished = false; !is_finished;) {
        const Delivery delivery = scheduler.wait(5);
        for (const Memory& memory : scheduler.take_items(delivery.items)) {
          CHECK(memory.size() == size);
          ++taken;
        }
        is_finished = delivery.is_finished;
        REQUIRE((is_finished || !delivery.items.empty()));
      }
      for (std::thread& reader : readers) reader.join();
      CHECK(taken == 200);
      CHECK(scheduler.stats().peak_held_bytes <= 3 * size);
    }
  }
}

TEST_CASE("an item larger than the limit is read alone") {
  Scheduler scheduler(plan_of(3, 1000), {Lane::kFile}, options_of(10));
  std::uint32_t delivered = 0;
  while (delivered < 3) {
    while (auto block = scheduler.try_take(Lane::kFile, Clock::now()).block) {
      scheduler.finish(Lane::kFile, std::move(*block));
    }
    for (const std::uint32_t item : scheduler.wait(1).items) {
      CHECK(item == delivered++);
      scheduler.take_item(item);
    }
  }
  CHECK(scheduler.stats().peak_held_bytes == 1000);
}

TEST_CASE("in item order no item overtakes another") {
  Scheduler scheduler(plan_of(4, 64), {Lane::kFile}, options_of(1000, true));
  std::vector<Block> blocks;
  while (auto block = scheduler.try_take(Lane::kFile, Clock::now()).block) blocks.push_back(*block);
  REQUIRE(blocks.size() == 4);
  scheduler.finish(Lane::kFile, blocks[1]);
  scheduler.finish(Lane::kFile, blocks[3]);
  CHECK(scheduler.wait(0).items.empty());
  scheduler.finish(Lane::kFile, blocks[0]);
  CHECK(scheduler.wait(0).items == std::vector<std::uint32_t>{0, 1});
  scheduler.finish(Lane::kFile, blocks[2]);
  CHECK(scheduler.wait(0).items == std::vector<std::uint32_t>{2, 3});
}

TEST_CASE("item order cannot deadlock when two lanes share a small limit") {
  Plan plan;
  plan.items = {{0, 0, 100}, {1, 0, 100}};
  plan.spans = {{0, 0, 100, 0, 1}, {1, 0, 100, 1, 1}};
  Scheduler scheduler(plan, {Lane::kFile, Lane::kHttp}, options_of(100, true));
  // The lane of the second item is faster and takes all memory.
  while (auto block = scheduler.try_take(Lane::kHttp, Clock::now()).block) {
    scheduler.finish(Lane::kHttp, std::move(*block));
  }
  while (auto block = scheduler.try_take(Lane::kFile, Clock::now()).block) {
    scheduler.finish(Lane::kFile, std::move(*block));
  }
  CHECK(scheduler.wait(0).items == std::vector<std::uint32_t>{0, 1});
}

constexpr std::uint64_t kTooLarge = std::uint64_t{1} << 60;  // no system has so much memory

TEST_CASE("an item without memory waits until the consumer has freed earlier items") {
  Plan plan = plan_of(1, 64);
  plan.items.push_back({0, 64, 64 + kTooLarge});
  plan.spans = {{0, 0, 64 + kTooLarge, 0, 2}};
  Scheduler scheduler(std::move(plan), {Lane::kFile}, options_of(4 * kTooLarge));
  scheduler.finish(Lane::kFile, *scheduler.try_take(Lane::kFile, Clock::now()).block);
  CHECK(scheduler.wait(0).items == std::vector<std::uint32_t>{0});
  const Memory taken = scheduler.take_item(0);
  const TakeResult short_of_memory = scheduler.try_take(Lane::kFile, Clock::now());
  CHECK(!short_of_memory.block);
  CHECK(!short_of_memory.is_finished);
  bool is_woken = false;
  scheduler.add_waker(Lane::kFile, [&is_woken] { is_woken = true; });
  CHECK(!scheduler.wait(0).error);
  CHECK(is_woken);
  CHECK(scheduler.try_take(Lane::kFile, Clock::now()).is_finished);
  CHECK(scheduler.wait(0).error.value().code == ErrorCode::kOutOfMemory);
  scheduler.remove_wakers();
}

TEST_CASE(
    "an item without memory waits for another lane, unless the other lane's items come later") {
  for (const bool in_item_order : {false, true}) {
    Plan plan;
    plan.items = {{0, 0, kTooLarge}, {1, 0, 64}};
    plan.spans = {{0, 0, kTooLarge, 0, 1}, {1, 0, 64, 1, 1}};
    Scheduler scheduler(std::move(plan), {Lane::kFile, Lane::kHttp},
                        options_of(4 * kTooLarge, in_item_order));
    Block other = *scheduler.try_take(Lane::kHttp, Clock::now()).block;
    CHECK(scheduler.wait(0).items.empty());
    CHECK(scheduler.try_take(Lane::kFile, Clock::now()).is_finished == in_item_order);
    if (in_item_order) continue;
    scheduler.finish(Lane::kHttp, std::move(other));
    CHECK(scheduler.wait(0).items == std::vector<std::uint32_t>{1});
    scheduler.take_item(1);
    scheduler.wait(0);
    CHECK(scheduler.try_take(Lane::kFile, Clock::now()).is_finished);
    CHECK(scheduler.wait(0).error.value().code == ErrorCode::kOutOfMemory);
  }
}

TEST_CASE("a block that must be tried again returns when it is due, and not before") {
  Scheduler scheduler(plan_of(1, 64), {Lane::kHttp}, options_of(1000));
  const TimePoint now = Clock::now();
  Block block = *scheduler.try_take(Lane::kHttp, now).block;
  block.received = 10;
  scheduler.retry_at(Lane::kHttp, block, after(now, 5));
  const TakeResult early = scheduler.try_take(Lane::kHttp, after(now, 4.9));
  CHECK_FALSE(early.block);
  CHECK_FALSE(early.is_finished);
  CHECK(early.retry_at == after(now, 5));
  CHECK(scheduler.try_take(Lane::kHttp, after(now, 5)).block->received == 10);
  CHECK(scheduler.stats().retries == 1);
}

TEST_CASE("the consumer gets the first error, and no item after it") {
  Scheduler scheduler(plan_of(2, 64), {Lane::kFile}, options_of(1000));
  Block block = *scheduler.take(Lane::kFile);
  scheduler.fail(some_error("first"));
  scheduler.fail(some_error("second"));
  scheduler.finish(Lane::kFile, block);
  const Delivery delivery = scheduler.wait(1);
  REQUIRE(delivery.error);
  CHECK(delivery.error->detail == "first");
  CHECK(delivery.items.empty());
  CHECK_FALSE(scheduler.take(Lane::kFile));
}

std::size_t held_bytes() { return Arena::instance().stats().held_bytes; }

TEST_CASE("memory that was not taken is freed at the end, but not while a block is lent") {
  Scheduler scheduler(plan_of(2, 64), {Lane::kPython}, options_of(1000));
  auto block = scheduler.lend(Lane::kPython);
  const std::size_t held = held_bytes();
  scheduler.stop();
  scheduler.release();
  CHECK(held_bytes() == held);
  scheduler.finish(Lane::kPython, std::move(*block));
  CHECK(held_bytes() == held);
  scheduler.end_loan();
  CHECK(held_bytes() < held);
  CHECK(scheduler.take_item(0).size() == 0);
  CHECK_FALSE(scheduler.lend(Lane::kPython));
}

TEST_CASE("a lent block that failed does not keep the memory of its session (regression)") {
  Scheduler scheduler(plan_of(2, 64), {Lane::kPython}, options_of(1000));
  const std::size_t before = held_bytes();
  REQUIRE(scheduler.lend(Lane::kPython));
  scheduler.fail(some_error("the source failed"));
  scheduler.end_loan();
  scheduler.release();
  CHECK(held_bytes() == before);
}

TEST_CASE("stopping wakes every reader and the consumer") {
  Scheduler scheduler(plan_of(2, 64), {Lane::kFile}, options_of(64));
  const auto held = scheduler.take(Lane::kFile);
  int woken = 0;
  scheduler.add_waker(Lane::kHttp, [&woken] { ++woken; });
  std::thread reader([&scheduler] { CHECK_FALSE(scheduler.take(Lane::kFile)); });
  std::thread consumer([&scheduler] { CHECK(scheduler.wait(60).is_finished); });
  scheduler.stop();
  reader.join();
  consumer.join();
  CHECK(woken == 1);
}

TEST_CASE("a consumer that can wait is woken for enough bytes, a starved reader, or the end") {
  const auto finish_one = [](Scheduler& scheduler) {
    auto block = scheduler.try_take(Lane::kFile, Clock::now()).block;
    if (block) scheduler.finish(Lane::kFile, std::move(*block));
    return block.has_value();
  };
  const auto waiting = [](Scheduler& scheduler, std::uint64_t enough_bytes) {
    auto waited = [&scheduler, enough_bytes] { return scheduler.wait(30, enough_bytes); };
    return std::async(std::launch::async, waited);
  };
  const auto is_asleep = [](std::future<Delivery>& delivery) {
    return delivery.wait_for(std::chrono::milliseconds(20)) == std::future_status::timeout;
  };
  SUBCASE("enough bytes, or all remaining items") {
    for (const auto& [items, enough_bytes] : {std::pair(4U, 128U), std::pair(2U, 1000U)}) {
      Scheduler scheduler(plan_of(items, 64), {Lane::kFile}, options_of(1000));
      auto delivery = waiting(scheduler, enough_bytes);
      CHECK(finish_one(scheduler));
      CHECK(is_asleep(delivery));
      CHECK(finish_one(scheduler));
      CHECK(delivery.get().items.size() == 2);
    }
  }
  SUBCASE("a reader without memory") {
    Scheduler scheduler(plan_of(4, 64), {Lane::kFile}, options_of(128));
    auto delivery = waiting(scheduler, 1000);
    CHECK(finish_one(scheduler));
    CHECK(finish_one(scheduler));
    CHECK(is_asleep(delivery));
    CHECK_FALSE(finish_one(scheduler));
    CHECK(delivery.get().items.size() == 2);
  }
  SUBCASE("the time-out") {
    Scheduler scheduler(plan_of(2, 64), {Lane::kFile}, options_of(1000));
    CHECK(finish_one(scheduler));
    CHECK(scheduler.wait(0.01, 1000).items.size() == 1);
  }
}

TEST_CASE("readers that block for memory wake a consumer that can wait") {
  Scheduler scheduler(plan_of(500, 64), {Lane::kFile}, options_of(3 * 64));
  std::vector<std::thread> readers = readers_of(scheduler, 4);
  std::uint32_t taken = 0;
  for (bool is_finished = false; !is_finished;) {
    const Delivery delivery = scheduler.wait(60, 1 << 20);
    taken += static_cast<std::uint32_t>(scheduler.take_items(delivery.items).size());
    is_finished = delivery.is_finished;
    REQUIRE((is_finished || !delivery.items.empty()));
  }
  for (std::thread& reader : readers) reader.join();
  CHECK(taken == 500);
}

TEST_CASE("a memory limit that is raised wakes readers, and never exceeds that of the options") {
  SchedulerOptions options = options_of(4 * 64, true);
  options.first_memory_limit_bytes = 64;
  Scheduler scheduler(plan_of(6, 64), {Lane::kFile}, options);
  const auto blocks_now = [&scheduler] {
    int count = 0;
    while (scheduler.try_take(Lane::kFile, Clock::now()).block) ++count;
    return count;
  };
  CHECK(blocks_now() == 1);
  int woken = 0;
  scheduler.add_waker(Lane::kFile, [&woken] { ++woken; });
  scheduler.set_memory_limit(2 * 64);
  CHECK(woken > 0);
  CHECK(blocks_now() == 1);
  scheduler.set_memory_limit(1 << 20);
  CHECK(blocks_now() == 2);
  CHECK(scheduler.stats().peak_held_bytes == 4 * 64);
}

TEST_CASE("a server that asks for new credentials wakes the consumer") {
  Scheduler scheduler(plan_of(1, 100), {Lane::kHttp}, options_of(1000));
  auto delivery = std::async(std::launch::async, [&scheduler] { return scheduler.wait(30); });
  CHECK(delivery.wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout);
  scheduler.ask_refresh(0);
  REQUIRE(delivery.wait_for(std::chrono::seconds(20)) == std::future_status::ready);
  CHECK(delivery.get().to_refresh == std::vector<std::uint32_t>{0});
}

TEST_CASE("empty items, and a plan without items, are complete at once") {
  Plan plan;
  plan.items = {{0, 8, 8}, {0, 8, 8}};
  Scheduler scheduler(plan, {Lane::kFile}, options_of(64));
  CHECK(scheduler.wait(0).items.size() == 2);
  Scheduler empty(Plan{}, {}, options_of(64));
  CHECK(empty.wait(0).is_finished);
}

TEST_CASE("an item is given to the consumer only once") {
  Scheduler scheduler(plan_of(1, 64), {Lane::kFile}, options_of(64));
  scheduler.finish(Lane::kFile, *scheduler.take(Lane::kFile));
  CHECK(scheduler.take_item(0).size() == 0);  // not delivered yet
  scheduler.wait(0);
  CHECK(scheduler.take_item(0).size() == 64);
  CHECK(scheduler.take_item(0).size() == 0);
  CHECK(scheduler.take_item(99).size() == 0);
}

TEST_CASE("an item that is read again for its digest gets a new connection") {
  Plan plan = plan_of(1, 100);
  plan.digests.items = {{Crc::kCrc32c, 0x12345678, 0}};
  plan.items[0].source = 0;
  std::vector<std::byte> target(100);
  plan.items[0].target = target.data();
  Scheduler scheduler(std::move(plan), {Lane::kHttp}, {.block_bytes = {100, 100, 100, 100}});
  auto block = scheduler.take(Lane::kHttp);
  REQUIRE(block);
  CHECK(block->attempts == 0);
  scheduler.finish(Lane::kHttp, std::move(*block));
  block = scheduler.take(Lane::kHttp);
  REQUIRE(block);
  CHECK(block->is_reread);
  CHECK(block->attempts == 1);  // a transfer sends this like a second attempt
  scheduler.finish(Lane::kHttp, std::move(*block));
  const Delivery delivery = scheduler.wait(1);
  REQUIRE(delivery.error);
  CHECK(delivery.error->code == ErrorCode::kChecksum);
}

}  // namespace
}  // namespace streamer
