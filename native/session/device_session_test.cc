// Real loads through the whole engine to a fake device, whose memory is in this machine. The fake
// copies late, on a separate thread. So if a slot or a target is used too early, the bytes are
// wrong, or a sanitizer reports a race.
#include <doctest/doctest.h>

#include <string>
#include <thread>
#include <vector>

#include "cuda/fake_driver.h"
#include "cuda/runtime.h"
#include "session/device_session_fixture.h"
#include "session/session.h"
#include "session/session_fixture.h"

namespace streamer {
namespace {

TEST_CASE("a file reaches a device through few slots, and each is reused only after its copy") {
  FakeDriver fake;
  fake.set_copy_delay_us(300);
  const std::string data = random_data(4'000'000, 2);
  const TemporaryFile file(data);
  Session session(options_with(4 * kBlockBytes));
  session.add_file(file.path(), data.size(), "");
  const Plan plan = plan_of(data.size(), 0);
  Consumer consumer(session, plan);
  consumer.load(plan, data);
  session.close();
  CHECK(session.stats().peak_pinned_bytes <= 4 * kBlockBytes);
  CHECK(session.stats().scheduler.bytes_delivered == data.size());
  // 1 MiB holds items of 100 kB that are requested and not yet taken
  CHECK(consumer.most_waiting <= 11);
}

TEST_CASE("an HTTP object reaches a device through faults and few slots") {
  FakeDriver fake;
  fake.set_copy_delay_us(100);
  const std::string data = random_data(4'000'000, 3);
  const LoopbackServer server(data, [](int number) {
    if (number % 20 == 3) return LoopbackFault::kCut;
    return number % 20 == 7 ? LoopbackFault::kUnavailable : LoopbackFault::kNone;
  });
  Session session(options_with(5 * kBlockBytes));
  session.add_http(target_of(server), data.size(), "", "ETag", false);
  const Plan plan = plan_of(data.size(), 0);
  Consumer consumer(session, plan);
  consumer.load(plan, data);
  session.close();
  CHECK(session.stats().scheduler.retries > 0);
}

TEST_CASE("the caller's own memory on two devices and on the host is filled in one load") {
  FakeDriver fake;
  const std::string data = random_data(900'000, 4);
  const TemporaryFile file(data);
  std::string targets(data.size(), '?');
  auto* const begin = reinterpret_cast<std::byte*>(targets.data());
  fake.place(begin + 300'000, 300'000, 1);
  Session session(options_with(1 << 20));
  session.add_file(file.path(), data.size(), "");
  Plan plan;
  for (const std::int32_t device : {0, 1, kHost}) {
    const std::uint64_t at = 300'000 * plan.items.size();
    plan.spans.push_back({0, at, at + 300'000, static_cast<std::uint32_t>(plan.items.size()), 1});
    plan.items.push_back({0, at, at + 300'000, begin + at, device});
  }
  session.start(plan, {{0, nullptr}, {1, nullptr}});
  Consumer consumer(session, plan);
  consumer.read_all();
  REQUIRE(!consumer.error);
  CHECK(consumer.delivered.size() == 3);
  CHECK(targets == data);
}

TEST_CASE("columns of a matrix reach a device, or this machine, without the bytes between them") {
  FakeDriver fake;
  constexpr std::uint64_t kRows = 500, kRun = 300, kStride = 1'000, kBegin = 100;
  const std::string data = random_data(kRows * kStride, 12);
  std::string expected;
  for (std::uint64_t row = 0; row < kRows; ++row) {
    expected += data.substr(kBegin + row * kStride, kRun);
  }
  const TemporaryFile file(data);
  for (const std::int32_t device : {0, kHost}) {
    std::string columns(expected.size(), '?');
    auto* const target = reinterpret_cast<std::byte*>(columns.data());
    const std::uint64_t end = kBegin + (kRows - 1) * kStride + kRun;
    const Plan plan{{{0, kBegin, end, target, device, kRun, kStride}}, {{0, kBegin, end, 0, 1}}};
    Session session(options_with(4 * kBlockBytes));
    session.add_file(file.path(), data.size(), "");
    session.start(plan);
    Consumer consumer(session, plan);
    consumer.read_all();
    session.close();
    REQUIRE(!consumer.error);
    CHECK(columns == expected);
    CHECK(session.stats().scheduler.bytes_delivered == expected.size());
  }
  CHECK(fake.calls("cuMemcpyBatchAsync") > 0);
}

TEST_CASE("memory of the consumer on this machine is requested, and read in place") {
  const std::string data = random_data(1'000'000, 10);
  const TemporaryFile file(data);
  Session session(options_with(1 << 20, 300'000));
  session.add_file(file.path(), data.size(), "");
  const Plan plan = plan_of(data.size(), kConsumersHost);
  Consumer consumer(session, plan);
  consumer.load(plan, data);
  CHECK(session.stats().scheduler.peak_held_bytes <= 300'000);
  CHECK(session.stats().peak_pinned_bytes == 0);
}

constexpr std::uint64_t kTinyBytes = 1'000;

// Returns items so small that a block has more copies than are started one by one. Their memory
// exists from the start. If it arrived in parts, blocks might be as short as these parts.
Plan tiny_plan_of(std::string& targets) {
  Plan plan;
  for (std::uint64_t begin = 0; begin < targets.size(); begin += kTinyBytes) {
    auto* const target = reinterpret_cast<std::byte*>(targets.data() + begin);
    plan.items.push_back({0, begin, begin + kTinyBytes, target, 0});
  }
  plan.spans.push_back({0, 0, targets.size(), 0, static_cast<std::uint32_t>(plan.items.size())});
  return plan;
}

// Loads 1000 tiny items. Returns the error, if any.
std::optional<ReadError> load_tiny_items() {
  const std::string data = random_data(1'000 * kTinyBytes, 11);
  const TemporaryFile file(data);
  std::string targets(data.size(), '?');
  const Plan plan = tiny_plan_of(targets);
  Session session(options_with(4 * kBlockBytes));
  session.add_file(file.path(), data.size(), "");
  Consumer consumer(session, plan);
  session.start(plan);
  consumer.read_all();
  session.close();
  CHECK((consumer.error || targets == data));
  return consumer.error;
}

TEST_CASE("the copies of many tiny items are passed to the driver in one call") {
  FakeDriver fake;
  CHECK_FALSE(load_tiny_items());
  CHECK(fake.calls("cuMemcpyBatchAsync") == 15);  // one call for each block but the short last one
}

TEST_CASE("a driver that lacks or refuses batches gets copies one by one") {
  for (const int refusal : {kCudaNotSupported, kCudaInvalidValue}) {
    FakeDriver fake;
    fake.fail("cuMemcpyBatchAsync", refusal, 0);
    CHECK_FALSE(load_tiny_items());
    CHECK(fake.calls("cuMemcpyBatchAsync") == 1);  // after one refusal, no further batch is tried
    CHECK(fake.calls("cuMemcpyHtoDAsync_v2") >= 1000);
  }
  FakeDriver fake;
  fake.fail("cuGetProcAddress_v2", 500, 0);
  CHECK_FALSE(load_tiny_items());
  CHECK(fake.calls("cuMemcpyBatchAsync") == 0);
}

TEST_CASE("a batch that fails ends the load with the driver's name of the error") {
  FakeDriver fake;
  fake.fail("cuMemcpyBatchAsync", 700, 3);
  const auto error = load_tiny_items();
  REQUIRE(error);
  CHECK(error->storage_code == "CUDA_ERROR_ILLEGAL_ADDRESS");
  CHECK(error->detail.find("pieces to cuda:0 failed") != std::string::npos);
}

TEST_CASE("copies wait for the earlier work on the consumer's stream") {
  FakeDriver fake;
  const std::string data = random_data(kItemBytes, 5);
  const TemporaryFile file(data);
  BusyTarget target(fake, data.size(), 100'000);
  Session session(options_with(1 << 20));
  session.add_file(file.path(), data.size(), "");
  const Plan plan = target.plan();
  session.start(plan, target.streams());
  Consumer consumer(session, plan);
  consumer.read_all();
  REQUIRE(!consumer.error);
  CHECK(target.settled() == data);
}

TEST_CASE("sessions that run at once share the ring of a device, and none starves") {
  FakeDriver fake;
  fake.set_copy_delay_us(100);
  const std::string data = random_data(2'000'000, 6);
  const TemporaryFile file(data);
  std::vector<std::thread> loaders;
  for (std::uint64_t slots = 4; slots < 8; ++slots) {
    loaders.emplace_back([&, slots] {
      Session session(options_with(slots * kBlockBytes));
      session.add_file(file.path(), data.size(), "");
      const Plan plan = plan_of(data.size(), 0);
      Consumer(session, plan).load(plan, data);
    });
  }
  for (std::thread& loader : loaders) loader.join();
  CHECK(fake.pinned_bytes() <= 8 * kBlockBytes);
}

TEST_CASE("closing in the middle of a load waits for copies and returns every slot") {
  FakeDriver fake;
  fake.set_copy_delay_us(2'000);
  const std::string data = random_data(4'000'000, 7);
  const TemporaryFile file(data);
  const LoopbackServer server(data, [](int number) {
    return number % 3 == 1 ? LoopbackFault::kSlow : LoopbackFault::kNone;
  });
  for (int looks = 0; looks < 12; ++looks) {
    CAPTURE(looks);
    Session session(options_with(4 * kBlockBytes));
    const bool is_file = looks % 2 == 0;
    if (is_file) session.add_file(file.path(), data.size(), "");
    if (!is_file) session.add_http(target_of(server), data.size(), "", "ETag", false);
    const Plan plan = plan_of(data.size(), 0);
    Consumer consumer(session, plan);
    session.start(plan);
    for (int i = 0; i < looks; ++i) consumer.look();
    const TimePoint began = Clock::now();
    session.close();
    CHECK(seconds_between(began, Clock::now()) < 1);
    CHECK(!session.has_abandoned_copies());
    const RingStats stats = CudaRuntime::instance().stats();
    CHECK(stats.free_bytes == stats.pinned_bytes);
    CHECK(session.wait(1).is_finished);
  }
}

TEST_CASE("the memory of a device that does not answer is abandoned, and closing still ends") {
  FakeDriver fake;
  const std::string data = random_data(kItemBytes, 8);
  const TemporaryFile file(data);
  std::string target(data.size(), '?');
  fake.hold_copies(1);
  {
    Session session(options_with(1 << 20));
    session.add_file(file.path(), data.size(), "");
    Plan plan = plan_of(data.size(), 0);
    plan.items[0].target = reinterpret_cast<std::byte*>(target.data());
    session.start(plan);
    while (fake.calls("cuMemcpyHtoDAsync_v2") < 2) std::this_thread::yield();
    const TimePoint began = Clock::now();
    session.close();
    CHECK(seconds_between(began, Clock::now()) < 1.5);
    CHECK(session.has_abandoned_copies());
    CHECK(CudaRuntime::instance().stats().abandoned_bytes == 2 * kBlockBytes);
    fake.hold_copies(0);
  }
  // The abandoned slots, and memory that was pinned in one call with them.
  CHECK(fake.pinned_bytes() >= 2 * kBlockBytes);
  const RingStats stats = CudaRuntime::instance().stats();
  CHECK(stats.free_bytes == stats.pinned_bytes);  // a reader without a slot may have pinned more
  fake.forget_pinned();
}

}  // namespace
}  // namespace streamer
