// Items that are held back until somebody says where to read them from.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/temporary_file_fixture.h"
#include "integrity/crc.h"
#include "schedule/scheduler.h"

namespace streamer {
namespace {

constexpr std::uint64_t kItemBytes = 64;
constexpr std::uint32_t kStorage = 0;  // the sources
constexpr std::uint32_t kPeer = 1;
constexpr std::uint32_t kOtherPeer = 2;

// Items of one object, all held back. The storage and two peers have it.
Plan held_back_plan(std::uint32_t count, std::uint64_t item_bytes = kItemBytes) {
  Plan plan;
  for (std::uint32_t i = 0; i < count; ++i) {
    plan.items.push_back({kStorage, i * item_bytes, (i + 1) * item_bytes});
    plan.held_back.push_back(i);
  }
  plan.peers = {kPeer, kOtherPeer};
  return plan;
}

SchedulerOptions options_of(std::uint64_t limit, bool in_item_order = false) {
  SchedulerOptions options;
  options.block_bytes.fill(kItemBytes);
  options.memory_limit_bytes = limit;
  options.in_item_order = in_item_order;
  options.server_of_source = {0, 1, 2};
  return options;
}

const std::vector<Lane> kLanes{Lane::kHttp, Lane::kHttp, Lane::kHttp};

// An object, and what each of its sources gives of it.
struct Bytes {
  explicit Bytes(std::uint64_t size) : object(random_data(size, 9)) {}

  std::uint64_t crc_of(const Item& item) const {
    return compute(Crc::kCrc32c, std::as_bytes(std::span(object)).subspan(item.begin, item.size()));
  }
  // Reads a block; the bytes are wrong if the source lies.
  void read(const Block& block) const {
    std::uint64_t position = block.begin;
    for (const Segment& segment : block.destinations) {
      std::memcpy(segment.target, object.data() + position, segment.size);
      if (lying.contains(block.source)) segment.target[0] ^= std::byte{1};
      position += segment.size;
    }
  }

  std::string object;
  std::set<std::uint32_t> lying;
};

// Counts what is reported of each item's bytes, by the first byte.
class CountingTap : public BlockTap {
 public:
  void offer(const Block& block, bool is_confirmed) noexcept override {
    const std::lock_guard lock(mutex);
    (is_confirmed ? stored : offered).push_back(block.begin);
  }
  void confirm(std::uint32_t, std::uint64_t begin, std::uint64_t, std::uint64_t) noexcept override {
    const std::lock_guard lock(mutex);
    confirmed.push_back(begin);
  }
  void forget(std::uint32_t, std::uint64_t begin, std::uint64_t) noexcept override {
    const std::lock_guard lock(mutex);
    forgotten.push_back(begin);
  }

  std::mutex mutex;
  std::vector<std::uint64_t> stored, offered, confirmed, forgotten;
};

std::vector<Block> blocks_now(Scheduler& scheduler) {
  std::vector<Block> blocks;
  while (auto block = scheduler.try_take(Lane::kHttp, Clock::now()).block) {
    blocks.push_back(std::move(*block));
  }
  return blocks;
}

TEST_CASE("an item that is held back is read when it is released, and its lane waits for it") {
  Scheduler scheduler(held_back_plan(2), kLanes, options_of(1000));
  const TakeResult before = scheduler.try_take(Lane::kHttp, Clock::now());
  CHECK_FALSE(before.block);
  CHECK_FALSE(before.is_finished);
  int woken = 0;
  scheduler.add_waker(Lane::kHttp, [&woken] { ++woken; });
  scheduler.release({{1, kStorage, 0}});
  CHECK(woken == 1);
  std::vector<Block> blocks = blocks_now(scheduler);
  REQUIRE(blocks.size() == 1);
  CHECK(blocks[0].begin == kItemBytes);
  scheduler.finish(Lane::kHttp, std::move(blocks[0]));
  CHECK(scheduler.wait(0).items == std::vector<std::uint32_t>{1});
  CHECK_FALSE(scheduler.try_take(Lane::kHttp, Clock::now()).is_finished);
  scheduler.release({{0, kStorage, 0}});
  scheduler.finish(Lane::kHttp, *scheduler.try_take(Lane::kHttp, Clock::now()).block);
  CHECK(scheduler.try_take(Lane::kHttp, Clock::now()).is_finished);
  CHECK(scheduler.wait(0).is_finished);
  scheduler.remove_wakers();
}

TEST_CASE("neighbours that are released together to one source share a block, in any order") {
  SchedulerOptions options = options_of(1 << 20);
  options.block_bytes.fill(100 * kItemBytes);
  Scheduler scheduler(held_back_plan(8), kLanes, options);
  scheduler.release({{0, kStorage, 0}, {1, kStorage, 0}, {3, kStorage, 0}, {2, kPeer, 0}});
  scheduler.release({{6, kStorage, 0}, {5, kStorage, 0}, {4, kStorage, 0}});
  std::set<std::pair<std::uint64_t, std::uint64_t>> ranges;
  for (const Block& block : blocks_now(scheduler)) {
    ranges.emplace(block.begin / kItemBytes, block.end / kItemBytes);
  }
  CHECK(ranges == decltype(ranges){{0, 2}, {2, 3}, {3, 4}, {4, 7}});
}

TEST_CASE("a slow source does not take the place of others") {
  Scheduler scheduler(held_back_plan(16), kLanes, options_of(1 << 20));
  std::vector<ReleasedItem> items;
  for (std::uint32_t item = 0; item < 12; ++item) items.push_back({item, kPeer, 0});
  for (std::uint32_t item = 12; item < 16; ++item) items.push_back({item, kStorage, 0});
  scheduler.release(items);
  std::vector<Block> taken;
  for (int i = 0; i < 4; ++i) {
    taken.push_back(*scheduler.try_take(Lane::kHttp, Clock::now()).block);
  }
  CHECK(std::ranges::count(taken, kStorage, &Block::source) == 2);
  const auto given = std::ranges::find(taken, kStorage, &Block::source);
  scheduler.finish(Lane::kHttp, std::move(*given));
  CHECK(scheduler.try_take(Lane::kHttp, Clock::now()).block->source == kStorage);
}

TEST_CASE("an item that is released twice, or that no one held back, is read once") {
  Plan plan = held_back_plan(2);
  plan.held_back = {0};
  plan.spans = {{kStorage, kItemBytes, 2 * kItemBytes, 1, 1}};
  Scheduler scheduler(std::move(plan), kLanes, options_of(1000));
  scheduler.release({{0, kStorage, 0}, {0, kPeer, 0}, {1, kPeer, 0}, {7, kPeer, 0}});
  scheduler.release({{0, kStorage, 0}});
  std::vector<Block> blocks = blocks_now(scheduler);
  CHECK(blocks.size() == 2);
  for (Block& block : blocks) {
    CHECK(block.source == kStorage);
    scheduler.finish(Lane::kHttp, std::move(block));
  }
  CHECK(scheduler.wait(0).items.size() == 2);
  CHECK(scheduler.wait(0).is_finished);
}

TEST_CASE("a load that is stopped waits for no item that is held back, and releases none") {
  Scheduler scheduler(held_back_plan(3), kLanes, options_of(1000));
  std::thread reader([&scheduler] { CHECK_FALSE(scheduler.take(Lane::kHttp)); });
  SUBCASE("closed") { scheduler.stop(); }
  SUBCASE("failed") { scheduler.fail(error_of(ErrorCode::kHttpStatus, "a block failed")); }
  reader.join();
  scheduler.release({{1, kPeer, 0}, {2, kStorage, 0}});
  const TakeResult taken = scheduler.try_take(Lane::kHttp, Clock::now());
  CHECK_FALSE(taken.block);
  CHECK(taken.is_finished);
  const Delivery delivery = scheduler.wait(0);
  CHECK(delivery.items.empty());
  CHECK(delivery.is_finished);
}

TEST_CASE("an item that was released is not handed out after a failure") {
  Scheduler scheduler(held_back_plan(3), kLanes, options_of(1000));
  scheduler.release({{0, kStorage, 0}});
  scheduler.fail(error_of(ErrorCode::kHttpStatus, "a block failed"));
  CHECK_FALSE(scheduler.take(Lane::kHttp));
  CHECK(scheduler.wait(0).items.empty());
}

TEST_CASE("in item order, the first item gets memory even if it is released last") {
  constexpr std::uint32_t kItems = 8;
  Scheduler scheduler(held_back_plan(kItems), kLanes, options_of(3 * kItemBytes, true));
  for (std::uint32_t item = kItems - 1; item > 0; --item) {
    scheduler.release({{item, kStorage, 0}});
    for (Block& block : blocks_now(scheduler)) scheduler.finish(Lane::kHttp, std::move(block));
  }
  CHECK(scheduler.wait(0).items.empty());
  scheduler.release({{0, kStorage, 0}});
  std::vector<std::uint32_t> delivered;
  while (delivered.size() < kItems) {
    for (Block& block : blocks_now(scheduler)) scheduler.finish(Lane::kHttp, std::move(block));
    const Delivery delivery = scheduler.wait(0);
    REQUIRE_FALSE(delivery.items.empty());
    scheduler.take_items(delivery.items);
    delivered.insert(delivered.end(), delivery.items.begin(), delivery.items.end());
  }
  std::vector<std::uint32_t> in_order(kItems);
  std::iota(in_order.begin(), in_order.end(), 0U);
  CHECK(delivered == in_order);
  CHECK(scheduler.stats().peak_held_bytes <= 4 * kItemBytes);
}

TEST_CASE(
    "a released item with wrong bytes of a peer is read from the storage once, and the others of "
    "that peer, too") {
  Bytes bytes(4 * kItemBytes);
  bytes.lying = {kPeer};
  const Plan plan = held_back_plan(4);
  CountingTap tap;
  Scheduler scheduler(plan, kLanes, options_of(1000));
  scheduler.set_tap(&tap);
  std::vector<ReleasedItem> released;
  for (std::uint32_t i = 0; i < 4; ++i) {
    released.push_back({i, i < 2 ? kPeer : kOtherPeer, bytes.crc_of(plan.items[i])});
  }
  scheduler.release(released);
  int of_storage = 0;
  while (true) {
    std::vector<Block> blocks = blocks_now(scheduler);
    if (blocks.empty()) break;
    for (Block& block : blocks) {
      of_storage += block.source == kStorage;
      if (scheduler.cached().is_lost(block.source)) {
        scheduler.finish_damaged(Lane::kHttp, std::move(block));
        continue;
      }
      bytes.read(block);
      scheduler.finish(Lane::kHttp, std::move(block));
    }
  }
  CHECK(of_storage == 2);
  CHECK(scheduler.cached().is_lost(kPeer));
  CHECK_FALSE(scheduler.cached().is_lost(kOtherPeer));
  const Delivery delivery = scheduler.wait(0);
  CHECK(delivery.items.size() == 4);
  for (const std::uint32_t item : delivery.items) {
    const Memory memory = scheduler.take_item(item);
    CHECK(std::memcmp(memory.data(), bytes.object.data() + item * kItemBytes, kItemBytes) == 0);
  }
  CHECK(scheduler.peer_bytes() ==
        std::map<std::uint32_t, std::uint64_t>{{kOtherPeer, 2 * kItemBytes}});
  CHECK(scheduler.stats().cache_failures == 2);
  CHECK(tap.offered == std::vector<std::uint64_t>{0, 128, 192});  // of the second, nothing was read
  CHECK(tap.confirmed == std::vector<std::uint64_t>{128, 192});
  CHECK(tap.forgotten == std::vector<std::uint64_t>{0, 64});
  CHECK(tap.stored == std::vector<std::uint64_t>{0, 64});
}

// Releases all items in drawn order and portions, some of them twice, each to a drawn source.
void release_all(Scheduler& scheduler, const Plan& plan, const Bytes& bytes, std::mt19937 random) {
  std::vector<std::uint32_t> items = plan.held_back;
  std::shuffle(items.begin(), items.end(), random);
  for (std::size_t next = 0; next < items.size();) {
    std::vector<ReleasedItem> released;
    for (std::size_t end = next + 1 + random() % 7; next < std::min(end, items.size()); ++next) {
      for (unsigned times = 1 + random() % 2; times > 0; --times) {
        const auto source = static_cast<std::uint32_t>(random() % 3);
        released.push_back({items[next], source, bytes.crc_of(plan.items[items[next]])});
      }
    }
    scheduler.release(released);
    if (random() % 4 == 0) std::this_thread::yield();
  }
}

// Reads blocks until there are no more. Peers fail now and then, and the storage asks for retries.
void read_all(Scheduler& scheduler, const Bytes& bytes, std::mt19937 random) {
  while (auto block = scheduler.take(Lane::kHttp)) {
    const bool is_of_peer = block->source != kStorage;
    const bool fails = random() % 16 == 0;
    if (is_of_peer && (fails || scheduler.cached().is_lost(block->source))) {
      scheduler.finish_damaged(Lane::kHttp, std::move(*block));
    } else if (fails) {
      scheduler.retry_at(Lane::kHttp, std::move(*block), Clock::now());
    } else {
      bytes.read(*block);
      scheduler.finish(Lane::kHttp, std::move(*block));
    }
  }
}

TEST_CASE("whatever is released when, and whoever lies or fails, every item is right, and once") {
  constexpr std::uint32_t kItems = 120;
  constexpr std::uint64_t kBytes = 3 * kItemBytes;  // three blocks
  for (unsigned seed = 0; seed < 24; ++seed) {
    CAPTURE(seed);
    const bool in_item_order = seed % 2 == 0;
    const Plan plan = held_back_plan(kItems, kBytes);
    Bytes bytes(kItems * kBytes);
    if (seed % 3 != 0) bytes.lying.insert(kPeer);
    if (seed % 3 == 2) bytes.lying.insert(kOtherPeer);
    CountingTap tap;
    Scheduler scheduler(plan, kLanes, options_of((1 + seed % 4) * kBytes, in_item_order));
    scheduler.set_tap(&tap);
    std::vector<std::thread> threads;
    threads.emplace_back([&] { release_all(scheduler, plan, bytes, std::mt19937(seed)); });
    for (unsigned reader = 0; reader < 3; ++reader) {
      threads.emplace_back([&, reader] { read_all(scheduler, bytes, std::mt19937(reader)); });
    }
    std::set<std::uint32_t> seen;
    for (bool is_finished = false; !is_finished;) {
      const Delivery delivery = scheduler.wait(30);
      CHECK_FALSE(delivery.error);
      for (const std::uint32_t item : delivery.items) {
        CHECK((!in_item_order || item == seen.size()));
        CHECK(seen.insert(item).second);
        const Memory memory = scheduler.take_item(item);
        CHECK(std::memcmp(memory.data(), bytes.object.data() + item * kBytes, kBytes) == 0);
      }
      is_finished = delivery.is_finished || delivery.items.empty();
    }
    scheduler.stop();  // if an item is missing, no thread waits for it
    for (std::thread& thread : threads) thread.join();
    CHECK(seen.size() == kItems);
    CHECK(scheduler.stats().peak_held_bytes <= (2 + seed % 4) * kBytes);
    std::uint64_t peer_bytes = 0;
    for (const auto& [source, size] : scheduler.peer_bytes()) {
      CHECK_FALSE(bytes.lying.contains(source));
      peer_bytes += size;
    }
    CHECK(tap.confirmed.size() * kBytes == peer_bytes);
    CHECK(tap.stored.size() * kItemBytes + peer_bytes == bytes.object.size());
  }
}

TEST_CASE("a load that is stopped while items are released ends every thread") {
  for (unsigned seed = 0; seed < 20; ++seed) {
    const Plan plan = held_back_plan(200);
    Bytes bytes(200 * kItemBytes);
    Scheduler scheduler(plan, kLanes, options_of(4 * kItemBytes));
    std::thread guide([&] { release_all(scheduler, plan, bytes, std::mt19937(seed)); });
    std::thread reader([&] { read_all(scheduler, bytes, std::mt19937(seed)); });
    for (unsigned waits = 0; waits < seed; ++waits) {
      scheduler.take_items(scheduler.wait(30).items);
    }
    scheduler.stop();
    guide.join();
    reader.join();
    scheduler.release();
    CHECK(scheduler.wait(0).is_finished);
  }
}

}  // namespace
}  // namespace streamer
