// Several devices in one session: each gets its share, and a waiting device does not delay others.
// The rings are real, over the fake driver; the sinks only keep their blocks.
#include <doctest/doctest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cuda/fake_driver.h"
#include "cuda/runtime.h"
#include "schedule/scheduler.h"

namespace streamer {
namespace {

constexpr std::uint64_t kBlockBytes = 64;

class KeepingSink : public DeviceSink {
 public:
  void submit(Lane, Block block) override { kept.push_back(std::move(block)); }

  std::vector<Block> kept;
};

// Items of one block each, for these devices. As in the file of a model, the items of one device
// follow those of another.
Plan plan_for(const std::vector<std::int32_t>& devices) {
  Plan plan;
  for (std::uint32_t i = 0; i < devices.size(); ++i) {
    const std::uint64_t begin = i * kBlockBytes;
    plan.items.push_back({0, begin, begin + kBlockBytes, nullptr, devices[i]});
    plan.spans.push_back({0, begin, begin + kBlockBytes, i, 1});
  }
  return plan;
}

class Desk {
 public:
  // `slots` has the number of slots of each device.
  Desk(const std::vector<std::int32_t>& devices, const std::vector<std::uint64_t>& slots,
       std::uint64_t memory_limit_bytes = 1 << 20, bool in_item_order = false)
      : targets(devices.size(), std::string(kBlockBytes, '?')),
        scheduler(plan_for(devices), {Lane::kHttp}, [&] {
          SchedulerOptions options;
          options.block_bytes.fill(kBlockBytes);
          options.memory_limit_bytes = memory_limit_bytes;
          options.in_item_order = in_item_order;
          return options;
        }()) {
    fake.set_devices(static_cast<int>(slots.size()));
    for (std::size_t device = 0; device < slots.size(); ++device) {
      const auto number = static_cast<std::int32_t>(device);
      const auto user = std::make_shared<RingUser>();
      user->limit_bytes = slots[device] * kBlockBytes;
      user->slot_bytes = kBlockBytes;
      user->wake = [] {};
      const auto ring = CudaRuntime::instance().ring(number);
      ring->join(user);
      users.emplace_back(ring, user);
      scheduler.add_device(number, {ring, user, &sink});
    }
  }
  ~Desk() {
    for (const auto& [ring, user] : users) ring->leave(user);
  }
  Desk(const Desk&) = delete;
  Desk& operator=(const Desk&) = delete;

  // Provides the requested memory, and returns the items that needed it.
  std::vector<std::uint32_t> provide() {
    const Delivery delivery = scheduler.wait(0);
    std::vector<std::byte*> memory;
    for (const std::uint32_t item : delivery.to_allocate) {
      memory.push_back(reinterpret_cast<std::byte*>(targets[item].data()));
    }
    scheduler.provide(delivery.to_allocate, memory);
    return delivery.to_allocate;
  }
  std::optional<Block> take() { return scheduler.try_take(Lane::kHttp, Clock::now()).block; }
  // Takes all blocks that are available and returns their devices. All blocks stay in flight.
  std::vector<std::int32_t> take_all() {
    std::vector<std::int32_t> devices;
    while (auto block = take()) {
      devices.push_back(block->device);
      taken.push_back(std::move(*block));
    }
    return devices;
  }

  FakeDriver fake;
  std::vector<std::string> targets;
  KeepingSink sink;
  std::vector<std::pair<std::shared_ptr<PinnedRing>, std::shared_ptr<RingUser>>> users;
  std::vector<Block> taken;
  Scheduler scheduler;
};

using Devices = std::vector<std::int32_t>;
using Items = std::vector<std::uint32_t>;

TEST_CASE("devices get blocks in turn, although the items of one device come first") {
  Desk desk({0, 0, 0, 1, 1, 1}, {3, 3});
  desk.provide();
  CHECK(desk.take_all() == Devices{0, 1, 0, 1, 0, 1});
}

TEST_CASE("a device without a free slot does not delay another one") {
  Desk desk({0, 0, 0, 1, 1, 1}, {1, 3});
  desk.provide();
  CHECK(desk.take_all() == Devices{0, 1, 1, 1});
  desk.taken[0].slot.reset();
  CHECK(desk.take_all() == Devices{0});
}

TEST_CASE("a device that finishes blocks faster gets more of them") {
  Desk desk({0, 0, 0, 0, 1, 1, 1, 1}, {4, 4});
  desk.provide();
  auto first = desk.take();
  auto second = desk.take();
  REQUIRE((first && second));
  CHECK(first->device == 0);
  CHECK(second->device == 1);
  desk.scheduler.finish(Lane::kHttp, std::move(*second));
  desk.scheduler.land(Lane::kHttp, desk.sink.kept[0]);
  CHECK(desk.take()->device == 1);
}

TEST_CASE("a block that is tried again is counted once") {
  Desk desk({0, 0, 1, 1}, {4, 4});
  desk.provide();
  auto block = desk.take();
  REQUIRE(block->device == 0);
  desk.scheduler.requeue(Lane::kHttp, std::move(*block), after(Clock::now(), 100));
  CHECK(desk.take_all() == Devices{0, 1, 1});
}

TEST_CASE("memory is requested evenly, within the limit for all devices") {
  Desk desk({0, 0, 0, 0, 1, 1, 1, 1}, {4, 4}, 4 * kBlockBytes);
  CHECK(desk.provide() == Items{0, 4, 1, 5});
  CHECK(desk.provide().empty());
  CHECK(desk.take_all() == Devices{0, 1, 0, 1});
  desk.scheduler.finish(Lane::kHttp, std::move(desk.taken[1]));
  desk.scheduler.land(Lane::kHttp, desk.sink.kept[0]);
  CHECK(desk.scheduler.wait(0).items == Items{4});
  desk.scheduler.take_item(4);
  CHECK(desk.provide() == Items{6});
}

TEST_CASE("when one device has all its items, the others get all memory") {
  Desk desk({0, 1, 1, 1, 1}, {4, 4}, 4 * kBlockBytes);
  CHECK(desk.provide() == Items{0, 1, 2, 3});
}

TEST_CASE("in item order, the device with the first item comes first") {
  Desk desk({0, 0, 1, 1}, {4, 4}, 2 * kBlockBytes, true);
  CHECK(desk.provide() == Items{0, 1});
  CHECK(desk.take_all() == Devices{0, 0});
}

}  // namespace
}  // namespace streamer
