// Tests step by step what the scheduler does for devices. The ring is real, over the fake driver;
// the sink only keeps its blocks.
#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "cuda/fake_driver.h"
#include "cuda/runtime.h"
#include "io/arena.h"
#include "schedule/device_slots.h"
#include "schedule/scheduler.h"

namespace streamer {
namespace {

class KeepingSink : public DeviceSink {
 public:
  void submit(Lane, Block block) override { kept.push_back(std::move(block)); }

  std::vector<Block> kept;
};

constexpr std::uint64_t kBlockBytes = 64;

// Returns `count` items of 64 bytes for device 0, without targets.
Plan plan_of(std::uint32_t count) {
  Plan plan;
  for (std::uint32_t i = 0; i < count; ++i) {
    plan.items.push_back({0, i * kBlockBytes, (i + 1) * kBlockBytes, nullptr, 0});
  }
  plan.spans.push_back({0, 0, count * kBlockBytes, 0, count});
  return plan;
}

// A scheduler with `slots` slots, and a consumer that provides all memory.
class Desk {
 public:
  Desk(std::uint32_t items, std::uint64_t slots, std::uint64_t memory_limit_bytes = 1 << 20)
      : Desk(plan_of(items), Lane::kHttp, slots, memory_limit_bytes) {}
  Desk(Plan plan, Lane lane, std::uint64_t slots, std::uint64_t memory_limit_bytes = 1 << 20)
      : targets(plan.items.size(), std::string(kBlockBytes, '?')),
        scheduler(std::move(plan), {lane}, [&] {
          SchedulerOptions options;
          options.block_bytes.fill(kBlockBytes);
          options.memory_limit_bytes = memory_limit_bytes;
          return options;
        }()) {
    user->limit_bytes = slots * kBlockBytes;
    user->slot_bytes = kBlockBytes;
    user->wake = [] {};
    ring->join(user);
    scheduler.add_device(0, {ring, user, &sink});
  }
  ~Desk() { ring->leave(user); }
  Desk(const Desk&) = delete;
  Desk& operator=(const Desk&) = delete;

  std::vector<std::uint32_t> provide() {
    const Delivery delivery = scheduler.wait(0);
    std::vector<std::byte*> memory;
    for (const std::uint32_t item : delivery.to_allocate) {
      memory.push_back(reinterpret_cast<std::byte*>(targets[item].data()));
    }
    scheduler.provide(delivery.to_allocate, memory);
    return delivery.to_allocate;
  }
  std::optional<Block> take(TimePoint now = Clock::now()) {
    return scheduler.try_take(Lane::kHttp, now).block;
  }

  FakeDriver fake;
  std::vector<std::string> targets;
  std::shared_ptr<PinnedRing> ring = CudaRuntime::instance().ring(0);
  std::shared_ptr<RingUser> user = std::make_shared<RingUser>();
  KeepingSink sink;
  Scheduler scheduler;
};

TEST_CASE("memory on a device is requested in order, as far as the limit allows") {
  Desk desk(5, 5, 2 * kBlockBytes);
  CHECK(desk.provide() == std::vector<std::uint32_t>{0, 1});
  CHECK(desk.provide().empty());
  auto block = desk.take();
  REQUIRE(block);
  desk.scheduler.finish(Lane::kHttp, std::move(*block));
  CHECK(desk.scheduler.wait(0).items.empty());  // read, but not yet on the device
  desk.scheduler.land(Lane::kHttp, desk.sink.kept[0]);
  CHECK(desk.scheduler.wait(0).items == std::vector<std::uint32_t>{0});
  desk.scheduler.take_item(0);
  CHECK(desk.provide() == std::vector<std::uint32_t>{2});
  CHECK(desk.scheduler.stats().peak_held_bytes == 2 * kBlockBytes);
}

TEST_CASE("no block is handed out without memory or without a slot") {
  Desk desk(3, 2);
  CHECK(!desk.take());
  desk.provide();
  auto one = desk.take();
  auto two = desk.take();
  REQUIRE((one && two));
  // Otherwise a reader would spin.
  CHECK(!desk.scheduler.try_take(Lane::kHttp, Clock::now()).retry_at);
  CHECK(!desk.take());
  one->slot.reset();
  CHECK(desk.take());
}

TEST_CASE("a block is read into its slot and keeps the destinations of its bytes") {
  Desk desk(1, 1);
  desk.provide();
  const auto block = desk.take();
  REQUIRE(block);
  REQUIRE(block->read_targets().size() == 1);
  CHECK(block->read_targets()[0].target == block->slot->data());
  REQUIRE(block->destinations.size() == 1);
  CHECK(block->destinations[0].target == reinterpret_cast<std::byte*>(desk.targets[0].data()));
}

TEST_CASE("bytes lie in a slot as in their pages of the file, if there is room") {
  const FakeDriver fake;
  const auto ring = CudaRuntime::instance().ring(0);
  const auto user = std::make_shared<RingUser>();
  user->limit_bytes = user->slot_bytes = 8'192;
  for (const auto& [size, ahead] : {std::pair{3'192u, 5'000u % 4'096u}, std::pair{8'192u, 0u}}) {
    Block block;
    block.begin = 5'000;
    block.end = 5'000 + size;
    block.slot = ring->try_acquire(user);
    direct_to_slot(block);
    CHECK(block.read_targets()[0].target == block.slot->data() + ahead);
    CHECK(block.read_targets()[0].size == size);
  }
}

TEST_CASE("a failed block keeps its slot only if it has received bytes") {
  Desk desk(1, 1);
  desk.provide();
  const TimePoint now = Clock::now();
  auto block = desk.take(now);
  block->received = 10;
  desk.scheduler.retry_at(Lane::kHttp, std::move(*block), now);
  CHECK(desk.user->held_bytes == kBlockBytes);
  block = desk.take(now);
  CHECK(block->received == 10);
  block->received = 0;
  desk.scheduler.retry_at(Lane::kHttp, std::move(*block), now);
  CHECK(desk.user->held_bytes == 0);
  CHECK(desk.take(now)->read_targets()[0].target != nullptr);
}

TEST_CASE("a block that waits for the consumer holds no slot") {
  Desk desk(1, 1);
  desk.provide();
  const TimePoint now = Clock::now();
  auto block = desk.take(now);
  block->received = 10;
  desk.scheduler.requeue_until_renewed(Lane::kHttp, std::move(*block), now);
  CHECK(desk.user->held_bytes == 0);
  CHECK(desk.take(now)->received == 0);
}

TEST_CASE("a requeued block is not compared with the checksum of its lost response (regression)") {
  Desk desk(1, 1);
  desk.provide();
  const TimePoint now = Clock::now();
  auto block = desk.take(now);
  block->received = 10;
  block->answer = AnswerCheck{.begin = block->begin, .expected = 1, .received = 2};
  desk.scheduler.requeue_until_renewed(Lane::kHttp, std::move(*block), now);
  const auto again = desk.take(now);
  REQUIRE(again);
  CHECK(!again->answer);
  CHECK(again->first_open() == again->begin);
}

TEST_CASE("a retry that has a slot does not wait behind blocks without one") {
  Desk desk(3, 1);
  desk.provide();
  const TimePoint now = Clock::now();
  auto block = desk.take(now);
  block->received = 10;
  const std::uint64_t begin = block->begin;
  desk.scheduler.retry_at(Lane::kHttp, std::move(*block), after(now, 5));
  const TakeResult early = desk.scheduler.try_take(Lane::kHttp, now);
  CHECK(!early.block);
  CHECK(early.retry_at == after(now, 5));
  const auto later = desk.take(after(now, 6));
  REQUIRE(later);
  CHECK(later->begin == begin);
}

TEST_CASE("memory that was not requested is refused") {
  Desk desk(1, 1);
  desk.provide();
  std::byte there{};
  CHECK_THROWS_AS(desk.scheduler.provide({1}, {&there}), std::invalid_argument);
  CHECK_THROWS_AS(desk.scheduler.provide({0}, {nullptr}), std::invalid_argument);
}

TEST_CASE("stopping returns the slots of blocks that wait for their retry") {
  Desk desk(2, 2);
  desk.provide();
  auto block = desk.take();
  block->received = 10;
  desk.scheduler.retry_at(Lane::kHttp, std::move(*block), after(Clock::now(), 100));
  auto reading = desk.take();
  desk.scheduler.stop();
  desk.scheduler.finish(Lane::kHttp, std::move(*reading));
  reading.reset();
  CHECK(desk.sink.kept.empty());
  CHECK(desk.user->held_bytes == 0);
}

TEST_CASE(
    "a device block that finishes after the end keeps no memory of its session (regression)") {
  const std::size_t before = Arena::instance().stats().held_bytes;
  Plan plan = plan_of(2);
  plan.items[0].device = kHost;
  plan.spans = {{0, 0, kBlockBytes, 0, 1}, {0, kBlockBytes, 2 * kBlockBytes, 1, 1}};
  Desk desk(std::move(plan), Lane::kPython, 1);
  desk.provide();
  REQUIRE(desk.scheduler.lend(Lane::kPython));
  auto late = desk.scheduler.lend(Lane::kPython);
  REQUIRE(is_on_device(late.value().device));
  desk.scheduler.end_loan();
  desk.scheduler.stop();
  desk.scheduler.release();
  CHECK(Arena::instance().stats().held_bytes == before + kBlockBytes);
  desk.scheduler.finish(Lane::kPython, std::move(*late));
  desk.scheduler.end_loan();
  CHECK(Arena::instance().stats().held_bytes == before);
}

}  // namespace
}  // namespace streamer
