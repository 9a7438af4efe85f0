// Real loads through the whole engine, with files and HTTP, faults, cancellation and parallel
// sessions. The sanitizers run these tests.
#include "session/session.h"

#include <doctest/doctest.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "http/kept_connections.h"
#include "session/session_fixture.h"

namespace streamer {
namespace {

constexpr std::uint64_t kBlockBytes = 64 << 10;

SessionOptions options_with(std::uint64_t memory_limit_bytes = 64 << 20) {
  SessionOptions options;
  options.scheduler.block_bytes.fill(kBlockBytes);
  options.scheduler.memory_limit_bytes = memory_limit_bytes;
  options.timeouts.first_byte_timeout_s = 20;
  options.retry.after_failure.first_s = 0.001;
  return options;
}

// Adds items of 100 000 bytes that cover the object, as one span.
void add_object(Plan& plan, std::uint32_t source, std::uint64_t size) {
  const auto first = static_cast<std::uint32_t>(plan.items.size());
  for (std::uint64_t begin = 0; begin < size; begin += 100'000) {
    plan.items.push_back({source, begin, std::min(size, begin + 100'000), nullptr});
  }
  const auto count = static_cast<std::uint32_t>(plan.items.size()) - first;
  plan.spans.push_back({source, 0, size, first, count});
}

// Reads everything, compares the bytes, and returns the statistics of the session.
SessionStats check_load(Session& session, const Plan& plan, const std::vector<std::string>& data) {
  session.start(plan);
  std::size_t delivered = 0;
  while (true) {
    const Delivery delivery = session.wait(30);
    REQUIRE_MESSAGE(!delivery.error, delivery.error->detail);
    for (const std::uint32_t index : delivery.items) {
      const Item& item = plan.items[index];
      const Memory memory = std::move(session.take({index}).front());
      const std::string_view got(reinterpret_cast<const char*>(memory.data()), memory.size());
      const std::string_view whole = data[item.source];
      CHECK(got == whole.substr(item.begin, item.size()));
      ++delivered;
    }
    if (delivery.is_finished) break;
    REQUIRE((!delivery.items.empty() || delivered < plan.items.size()));
  }
  CHECK(delivered == plan.items.size());
  const SessionStats stats = session.stats();
  session.close();
  return stats;
}

TEST_CASE("a file and an HTTP object are read in one session, with little memory") {
  const std::vector<std::string> data = {random_data(3'000'000, 1), random_data(2'000'000, 2)};
  const TemporaryFile file(data[0]);
  const LoopbackServer server(data[1]);
  Session session(options_with(500'000));
  session.add_file(file.path(), data[0].size(), "");
  session.add_http(target_of(server), data[1].size(), "", "ETag", false);
  Plan plan;
  add_object(plan, 0, data[0].size());
  add_object(plan, 1, data[1].size());
  const SessionStats stats = check_load(session, plan, data);
  CHECK(stats.scheduler.peak_held_bytes <= 600'000);
}

int descriptors_of(const std::string& path) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code is_gone;  // set for the descriptor of this listing itself
    if (std::filesystem::read_symlink(entry, is_gone) == path) ++count;
  }
  return count;
}

TEST_CASE("a file is closed with its last item, if a block ends in a gap (regression)") {
  const std::vector<std::string> data = {random_data(200'000, 10)};
  const TemporaryFile file(data[0]);
  Session session(options_with());
  session.add_file(file.path(), data[0].size(), "");
  Plan plan;
  plan.items = {{0, 0, 60'000}, {0, 80'000, 90'000}};
  plan.spans = {{0, 0, 90'000, 0, 2}};
  session.start(plan);
  std::size_t delivered = 0;
  while (delivered < 2) {
    const Delivery delivery = session.wait(30);
    REQUIRE(!delivery.error);
    delivered += delivery.items.size();
  }
  CHECK(descriptors_of(file.path()) == 0);
}

TEST_CASE("faults are retried until every byte is right") {
  const std::vector<std::string> data = {random_data(4'000'000, 3)};
  const LoopbackServer server(data[0], [](int number) {
    if (number % 20 == 3) return LoopbackFault::kCut;
    return number % 20 == 7 ? LoopbackFault::kUnavailable : LoopbackFault::kNone;
  });
  Session session(options_with());
  session.add_http(target_of(server), data[0].size(), "", "ETag", false);
  Plan plan;
  add_object(plan, 0, data[0].size());
  CHECK(check_load(session, plan, data).scheduler.retries > 0);
}

TEST_CASE("a slow request is replaced by its duplicate, and no byte is wrong") {
  const std::vector<std::string> data = {random_data(8'000'000, 4)};
  const LoopbackServer server(data[0], [](int number) {
    return number % 40 == 30 ? LoopbackFault::kSlow : LoopbackFault::kNone;
  });
  Session session(options_with());
  session.add_http(target_of(server), data[0].size(), "", "ETag", false);
  Plan plan;
  add_object(plan, 0, data[0].size());
  CHECK(check_load(session, plan, data).hedges > 0);
}

TEST_CASE(
    "the connections of a load are reused by the next load from that server, until released") {
  const std::vector<std::string> data = {random_data(2'000'000, 12)};
  const LoopbackServer server(data[0]);
  Plan plan;
  add_object(plan, 0, data[0].size());
  const auto load = [&] {
    SessionOptions options = options_with();
    options.http_reactors = 1;  // a second one might connect only in the next load
    options.http_in_flight = 3;
    Session session(options);
    session.add_http(target_of(server), data[0].size(), "", "ETag", false);
    check_load(session, plan, data);
  };
  load();
  const int connections = server.connections();
  CHECK(connections == 3);
  load();
  load();
  CHECK(server.connections() == connections);
  CHECK(KeptConnections::of_process().release() > 0);
  load();
  CHECK(server.connections() > connections);
}

bool becomes_true(const std::function<bool()>& condition) {
  for (int i = 0; i < 2000 && !condition(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return condition();
}

TEST_CASE("a reactor without a request closes its connection if another reactor's request waits") {
  const std::string data = random_data(2 * kBlockBytes, 13);
  const LoopbackServer* asked = nullptr;
  const LoopbackServer server(data, [&asked](int number) {
    if (number > 0) return LoopbackFault::kSilent;
    return becomes_true([asked] { return asked->requests() == 2; }) ? LoopbackFault::kNone
                                                                    : LoopbackFault::kSilent;
  });
  asked = &server;
  SessionOptions options = options_with();
  options.http_reactors = 2;
  options.http_in_flight = 1;
  Session session(options);
  session.add_http(target_of(server), data.size(), "", "ETag", false);
  Plan plan;
  add_object(plan, 0, data.size());
  session.start(plan);
  CHECK(becomes_true([&server] { return server.open_connections() == 2; }));
  CHECK(becomes_true([&server] { return server.open_connections() == 1; }));
  session.close();
}

TEST_CASE("several sessions of one process load at the same time") {
  const std::vector<std::string> data = {random_data(2'000'000, 5)};
  const LoopbackServer server(data[0]);
  std::vector<std::thread> loaders;
  for (int i = 0; i < 4; ++i) {
    loaders.emplace_back([&] {
      Session session(options_with());
      session.add_http(target_of(server), data[0].size(), "", "ETag", false);
      Plan plan;
      add_object(plan, 0, data[0].size());
      check_load(session, plan, data);
    });
  }
  for (std::thread& loader : loaders) loader.join();
}

TEST_CASE("closing in the middle joins every thread") {
  const std::string data = random_data(4'000'000, 6);
  const LoopbackServer server(data, [](int number) {
    return number % 3 == 1 ? LoopbackFault::kSlow : LoopbackFault::kNone;
  });
  for (int delay_ms = 0; delay_ms < 20; delay_ms += 4) {
    Session session(options_with());
    session.add_http(target_of(server), data.size(), "", "ETag", false);
    Plan plan;
    add_object(plan, 0, data.size());
    session.start(plan);
    std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
    session.close();
    CHECK(session.wait(1).is_finished);
  }
}

TEST_CASE(
    "memory that is freed after closing is not kept, even if the session lives (regression)") {
  const std::vector<std::string> data = {random_data(2 * kLargeStepBytes, 8)};
  const TemporaryFile file(data[0]);
  Session session(options_with());
  session.add_file(file.path(), data[0].size(), "");
  Plan plan;
  plan.items.push_back({0, 0, data[0].size(), nullptr});
  plan.spans.push_back({0, 0, data[0].size(), 0, 1});
  session.start(plan);
  while (session.wait(30).items.empty()) {
  }
  Memory memory = std::move(session.take({0}).front());
  session.close();
  memory = Memory();
  CHECK(Arena::instance().stats().cached_bytes == 0);
}

TEST_CASE("a server that always fails ends the load") {
  const std::string data = random_data(1'000'000, 7);
  const LoopbackServer server(data, [](int) { return LoopbackFault::kUnavailable; });
  SessionOptions options = options_with();
  options.retry.block_deadline_s = 0.5;
  Session session(options);
  session.add_http(target_of(server), data.size(), "", "ETag", false);
  Plan plan;
  add_object(plan, 0, data.size());
  session.start(plan);
  Delivery delivery;
  while (!delivery.error && !delivery.is_finished) delivery = session.wait(30);
  REQUIRE(delivery.error);
  CHECK(delivery.error->http_status == 503);
  CHECK(delivery.error->detail.find(" has been failing for ") != std::string::npos);
  CHECK(server.requests() < 40);
}

TEST_CASE("an outage of the whole server is waited for, and costs few requests (regression)") {
  const std::vector<std::string> data = {random_data(4'000'000, 10)};
  const TimePoint began = Clock::now();
  const LoopbackServer server(data[0], [began](int number) {
    const bool is_away = number > 20 && seconds_between(began, Clock::now()) < 1;
    return is_away ? LoopbackFault::kCutAtOnce : LoopbackFault::kNone;
  });
  Session session(options_with());
  session.add_http(target_of(server), data[0].size(), "", "ETag", false);
  Plan plan;
  add_object(plan, 0, data[0].size());
  const SessionStats stats = check_load(session, plan, data);
  CHECK(stats.outages.outages >= 1);
  CHECK(stats.outages.waited_s > 0.3);
  CHECK(server.requests() < 2 * 62 + static_cast<int>(stats.outages.probes));
}

TEST_CASE("an outage of one server does not delay another one (regression)") {
  const std::vector<std::string> data = {random_data(1'000'000, 11), random_data(1'000'000, 12)};
  std::atomic<bool> is_back = false;
  const LoopbackServer sick(data[0], [&is_back](int number) {
    return number > 2 && !is_back ? LoopbackFault::kCutAtOnce : LoopbackFault::kNone;
  });
  const LoopbackServer healthy(data[1]);
  Session session(options_with());
  session.add_http(target_of(sick), data[0].size(), "", "ETag", false);
  session.add_http(target_of(healthy), data[1].size(), "", "ETag", false);
  Plan plan;
  add_object(plan, 0, data[0].size());
  add_object(plan, 1, data[1].size());
  session.start(plan);
  std::size_t of_healthy = 0;
  std::size_t delivered = 0;
  while (delivered < plan.items.size()) {
    const Delivery delivery = session.wait(30);
    REQUIRE_MESSAGE(!delivery.error, delivery.error->detail);
    for (const std::uint32_t index : delivery.items) {
      ++delivered;
      of_healthy += plan.items[index].source;
      session.take({index});
    }
    if (of_healthy == 10) is_back = true;  // only after all bytes of the other server have arrived
  }
  CHECK(session.outages().empty());
}

// Makes the plan ask for the CRC32C of every item.
void want_digests(Plan& plan, const std::string& data) {
  for (const Item& item : plan.items) {
    const std::string_view bytes = std::string_view(data).substr(item.begin, item.size());
    const std::uint64_t value = compute(Crc::kCrc32c, std::as_bytes(std::span(bytes)));
    plan.digests.items.push_back({Crc::kCrc32c, value, item.source});
  }
}

TEST_CASE("bytes that were flipped on their way are read again, and no others") {
  const std::vector<std::string> data = {random_data(4'000'000, 8)};
  const LoopbackServer server(data[0], [](int number) {
    return number == 5 ? LoopbackFault::kFlip : LoopbackFault::kNone;
  });
  Session session(options_with());
  session.add_http(target_of(server), data[0].size(), "", "ETag", false);
  Plan plan;
  add_object(plan, 0, data[0].size());
  want_digests(plan, data[0]);
  CHECK(check_load(session, plan, data).scheduler.rereads == 1);
}

TEST_CASE("bytes that are flipped in storage end the load, with the item and both digests") {
  const std::string data = random_data(4'000'000, 9);
  std::string rotten = data;
  rotten[1'234'567] = static_cast<char>(rotten[1'234'567] ^ 4);
  const TemporaryFile file(rotten);
  Session session(options_with());
  session.add_file(file.path(), data.size(), "");
  Plan plan;
  add_object(plan, 0, data.size());
  want_digests(plan, data);
  session.start(plan);
  Delivery delivery;
  while (!delivery.error && !delivery.is_finished) {
    delivery = session.wait(30);
    session.take(delivery.items);
  }
  REQUIRE(delivery.error);
  CHECK(delivery.error->code == ErrorCode::kChecksum);
  CHECK(delivery.error->item == 12);
  CHECK(delivery.error->expected != delivery.error->found);
  CHECK(session.stats().scheduler.rereads == 1);
}

}  // namespace
}  // namespace streamer
