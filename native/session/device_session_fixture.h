// Options, plans and a consumer, for tests of whole loads to a (fake) device.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/fake_driver.h"
#include "cuda/runtime.h"
#include "session/session.h"
#include "session/session_fixture.h"

namespace streamer {

inline constexpr std::uint64_t kBlockBytes = 64 << 10;
inline constexpr std::uint64_t kItemBytes = 100'000;

inline SessionOptions options_with(std::uint64_t pinned_bytes,
                                   std::uint64_t memory_limit_bytes = 1 << 20) {
  SessionOptions options;
  options.scheduler.block_bytes.fill(kBlockBytes);
  options.scheduler.memory_limit_bytes = memory_limit_bytes;
  options.pinned_bytes = pinned_bytes;
  options.retry.after_failure.first_s = 0.001;
  return options;
}

inline Plan plan_of(std::uint64_t size, std::int32_t device, std::uint32_t source = 0) {
  Plan plan;
  for (std::uint64_t begin = 0; begin < size; begin += kItemBytes) {
    plan.items.push_back({source, begin, std::min(size, begin + kItemBytes), nullptr, device});
  }
  plan.spans.push_back({source, 0, size, 0, static_cast<std::uint32_t>(plan.items.size())});
  return plan;
}

// A consumer that allocates the memory that the engine requests, as torch would.
class Consumer {
 public:
  Consumer(Session& session, Plan plan)
      : session_(session), plan_(std::move(plan)), memory_(plan_.items.size()) {}

  // Waits for one delivery and handles it. Returns false if nothing more will come.
  bool look(CudaStreamHandle stream = nullptr) {
    const Delivery delivery = session_.wait(30);
    error = delivery.error;
    if (error) return false;
    for (const std::uint32_t item : delivery.to_allocate) {
      memory_[item] = std::make_unique<std::string>(plan_.items[item].size(), '?');
      auto* target = reinterpret_cast<std::byte*>(memory_[item]->data());
      session_.provide(plan_.items[item].device, stream, {item}, {target});
      ++allocated;
    }
    for (const std::uint32_t item : delivery.items) {
      CHECK(session_.take({item}).front().size() == 0);
      delivered.push_back(item);
    }
    most_waiting = std::max(most_waiting, allocated - delivered.size());
    return !delivery.is_finished;
  }

  // Handles deliveries until nothing more will come, or something failed.
  void read_all() {
    while (look()) {
    }
  }

  void load(const Plan& plan, const std::string& data) {
    session_.start(plan);
    read_all();
    REQUIRE_MESSAGE(!error, error->detail);
    CHECK(delivered.size() == plan_.items.size());
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      const Item& item = plan_.items[i];
      CHECK(*memory_[i] == data.substr(item.begin, item.size()));
    }
  }

  std::optional<ReadError> error;
  std::vector<std::uint32_t> delivered;
  std::size_t allocated = 0;
  std::size_t most_waiting = 0;

 private:
  Session& session_;
  const Plan plan_;
  std::vector<std::unique_ptr<std::string>> memory_;
};

// Memory of device 0 that a stream of the consumer still fills with other bytes for a while.
class BusyTarget {
 public:
  BusyTarget(const FakeDriver& driver, std::size_t size, int microseconds)
      : bytes_(size, '?'),
        device_(CudaRuntime::instance().ring(0)->device()),
        current_(*device_),
        stream_(*device_) {
    driver.enqueue_fill(stream_.handle(), bytes_.data(), size, 'k', microseconds);
  }

  // Returns a plan with one item that is read into this memory.
  Plan plan() {
    Plan plan = plan_of(bytes_.size(), 0);
    plan.items[0].target = reinterpret_cast<std::byte*>(bytes_.data());
    return plan;
  }
  DeviceCopiers::ConsumerStreams streams() const { return {{0, stream_.handle()}}; }

  // Returns the bytes after the stream is done. A copy that did not wait for the stream is
  // overwritten.
  const std::string& settled() const {
    while (device_->driver().stream_query(stream_.handle()) == kCudaNotReady) {
      std::this_thread::yield();
    }
    return bytes_;
  }

 private:
  std::string bytes_;
  const std::shared_ptr<const CudaDevice> device_;
  const CurrentContext current_;
  const CudaStream stream_;
};

}  // namespace streamer
