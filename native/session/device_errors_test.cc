// A failure of a device ends the load with the driver's error, and frees all memory.
#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <vector>

#include "cuda/fake_driver.h"
#include "cuda/runtime.h"
#include "session/device_session_fixture.h"
#include "session/session.h"
#include "session/session_fixture.h"

namespace streamer {
namespace {

// Returns the error of a load of a file to device 0. `arrange` prepares the fake driver first.
ReadError error_of_load(const std::function<void(FakeDriver&)>& arrange) {
  FakeDriver fake;
  arrange(fake);
  const std::string data = random_data(2'000'000, 1);
  const TemporaryFile file(data);
  const Plan plan = plan_of(data.size(), 0);
  Session session(options_with(4 * kBlockBytes));
  session.add_file(file.path(), data.size(), "");
  Consumer consumer(session, plan);
  session.start(plan);
  consumer.read_all();
  session.close();
  REQUIRE(consumer.error);
  CHECK(consumer.error->code == ErrorCode::kDevice);
  CHECK(consumer.delivered.size() < plan.items.size());
  CHECK(CudaRuntime::instance().stats().abandoned_bytes == 0);
  return *consumer.error;
}

TEST_CASE("each failed call of the driver ends the load with the driver's name of the error") {
  for (const std::string function :
       {"cuCtxPushCurrent_v2", "cuStreamCreate", "cuEventCreate", "cuEventRecord",
        "cuStreamWaitEvent", "cuMemcpyHtoDAsync_v2", "cuEventQuery"}) {
    for (const int after : {0, 3}) {
      CAPTURE(function);
      CAPTURE(after);
      const bool is_called_once = function == "cuStreamCreate";
      if (is_called_once && after > 0) continue;
      const ReadError error =
          error_of_load([&](FakeDriver& fake) { fake.fail(function.c_str(), 719, after); });
      CHECK(error.storage_code == "CUDA_ERROR_LAUNCH_FAILED");
    }
  }
}

TEST_CASE("each error code of a copy is reported by its name") {
  const std::vector<std::pair<int, const char*>> codes = {
      {1, "CUDA_ERROR_INVALID_VALUE"},       {2, "CUDA_ERROR_OUT_OF_MEMORY"},
      {4, "CUDA_ERROR_DEINITIALIZED"},       {201, "CUDA_ERROR_INVALID_CONTEXT"},
      {214, "CUDA_ERROR_ECC_UNCORRECTABLE"}, {400, "CUDA_ERROR_INVALID_HANDLE"},
      {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},   {999, "CUDA_ERROR_UNKNOWN"},
  };
  for (const auto& [code, name] : codes) {
    const ReadError error = error_of_load(
        [failing = code](FakeDriver& fake) { fake.fail("cuMemcpyHtoDAsync_v2", failing, 5); });
    CHECK(error.storage_code == name);
    CHECK(error.detail.find("bytes to cuda:0 failed: ") != std::string::npos);
  }
}

TEST_CASE("a device lost in the middle of a copy ends the load and returns all memory") {
  const ReadError error = error_of_load([](FakeDriver& fake) {
    fake.set_copy_delay_us(200);
    fake.lose_device(700, 6);
  });
  CHECK(error.storage_code == "CUDA_ERROR_ILLEGAL_ADDRESS");
}

TEST_CASE("memory that cannot be pinned ends the load with the number of requested bytes") {
  const ReadError error = error_of_load([](FakeDriver& fake) {
    fake.fail("cuMemHostRegister_v2", 2, 0);
    fake.fail("cuMemHostAlloc", 2, 0);
  });
  CHECK(error.storage_code == "CUDA_ERROR_OUT_OF_MEMORY");
  CHECK(error.detail.find("pinning 65536 bytes") != std::string::npos);
}

TEST_CASE("a missing device ends the load before a byte is read") {
  FakeDriver fake;
  fake.set_devices(1);
  Session session(options_with(1 << 20));
  session.add_file("/nobody/reads/this", 100, "");
  session.start(plan_of(100, 1));
  const Delivery delivery = session.wait(1);
  REQUIRE(delivery.error);
  CHECK(delivery.error->storage_code == "CUDA_ERROR_INVALID_DEVICE");
  CHECK(delivery.is_finished);
}

TEST_CASE("a target on another device is refused before a byte is read") {
  FakeDriver fake;
  std::string target(100, '?');
  fake.place(target.data(), target.size(), 1);
  Session session(options_with(1 << 20));
  session.add_file("/nobody/reads/this", target.size(), "");
  Plan plan = plan_of(target.size(), 0);
  plan.items[0].target = reinterpret_cast<std::byte*>(target.data());
  session.start(plan);
  const Delivery delivery = session.wait(1);
  REQUIRE(delivery.error);
  CHECK(delivery.error->detail ==
        "a target for cuda:0 is on another device: its address is cuda:1");
}

TEST_CASE("a failed read ends a load to a device like any other load") {
  FakeDriver fake;
  const std::string data = random_data(1'000'000, 9);
  const LoopbackServer server(data, [](int) { return LoopbackFault::kUnavailable; });
  SessionOptions options = options_with(4 * kBlockBytes);
  options.retry.block_deadline_s = 0.3;
  Session session(options);
  session.add_http(target_of(server), data.size(), "", "ETag", false);
  const Plan plan = plan_of(data.size(), 0);
  Consumer consumer(session, plan);
  session.start(plan);
  consumer.read_all();
  REQUIRE(consumer.error);
  CHECK(consumer.error->http_status == 503);
  session.close();
  const RingStats stats = CudaRuntime::instance().stats();
  CHECK(stats.free_bytes == stats.pinned_bytes);
}

}  // namespace
}  // namespace streamer
