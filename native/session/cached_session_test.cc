// Loads with a cache: the first load writes it, the second reads it, and damage never leads to
// wrong bytes.
#include <doctest/doctest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cache/temporary_entry_fixture.h"
#include "cache/writer.h"
#include "session/device_session_fixture.h"

namespace streamer {
namespace {

constexpr std::uint64_t kObjectBytes = 1'050'000;
const std::string kObject = random_data(kObjectBytes, 6);

// An object behind a server, and the cache's folder for it.
struct CachedObject {
  LoopbackServer server{kObject};
  TemporaryEntry folder;

  std::shared_ptr<CacheEntry> entry() const {
    REQUIRE(CacheWriter::of_process().wait_until_idle(10));
    return std::make_shared<CacheEntry>(folder.path(), kObjectBytes);
  }

  // Waits until the cache is written first, because a later write would repair the byte.
  void flip_byte(std::uint64_t position) const {
    REQUIRE(CacheWriter::of_process().wait_until_idle(10));
    folder.flip_byte(position);
  }

  // Adds the object as source 0, and its file in the cache as source 1.
  void add_to(Session& session, const std::shared_ptr<CacheEntry>& entry) const {
    session.add_http(target_of(server), kObjectBytes, "", "ETag", false);
    FileOptions how;
    how.is_being_written = true;
    session.add_file(folder.data(), kObjectBytes, "", how);
    session.write_to_cache(0, entry, true);
  }
};

// Returns a plan that reads items from the cache if the entry holds them.
Plan cached_plan(CacheEntry& entry, std::int32_t device = kHost) {
  Plan plan = plan_of(kObjectBytes, device);
  plan.spans.clear();
  for (std::uint32_t index = 0; index < plan.items.size(); ++index) {
    Item& item = plan.items[index];
    if (const auto crc = entry.checksum(item.begin, item.end)) {
      item.source = 1;
      plan.cached.push_back({index, 0, *crc});
    }
    plan.spans.push_back({item.source, item.begin, item.end, index, 1});
  }
  return plan;
}

SessionStats check_load(Session& session, const Plan& plan) {
  session.start(plan);
  std::size_t delivered = 0;
  while (true) {
    const Delivery delivery = session.wait(30);
    REQUIRE_MESSAGE(!delivery.error, delivery.error->detail);
    for (const std::uint32_t index : delivery.items) {
      const Item& item = plan.items[index];
      const Memory memory = std::move(session.take({index}).front());
      const std::string_view got(reinterpret_cast<const char*>(memory.data()), memory.size());
      CHECK(got == std::string_view(kObject).substr(item.begin, item.size()));
      ++delivered;
    }
    if (delivery.is_finished) break;
  }
  CHECK(delivered == plan.items.size());
  const SessionStats stats = session.stats();
  session.close();
  return stats;
}

SessionStats load(const CachedObject& object, std::uint64_t memory_limit_bytes = 64 << 20) {
  const auto entry = object.entry();
  Session session(options_with(1 << 20, memory_limit_bytes));
  object.add_to(session, entry);
  return check_load(session, cached_plan(*entry));
}

TEST_CASE("the second load reads every byte from the cache, and requests none from the server") {
  const CachedObject object;
  CHECK(load(object).scheduler.cached_bytes == 0);
  const int requests = object.server.requests();
  CHECK(requests > 0);
  for (const std::uint64_t memory_limit : {64 << 20, 150'000}) {
    const SessionStats stats = load(object, memory_limit);
    CHECK(stats.scheduler.cached_bytes == kObjectBytes);
    CHECK(stats.scheduler.cache_failures == 0);
    CHECK(object.server.requests() == requests);
  }
}

TEST_CASE(
    "a flipped bit is detected, and read from the server, and right in the cache afterwards") {
  const CachedObject object;
  load(object);
  object.flip_byte(250'000);
  const SessionStats stats = load(object);
  CHECK(stats.scheduler.cache_failures == 1);
  CHECK(stats.scheduler.cached_bytes == kObjectBytes - kItemBytes);
  CHECK(stats.scheduler.rereads == 0);
  CHECK(load(object).scheduler.cached_bytes == kObjectBytes);
  CHECK(object.entry()->check() == 0);
}

TEST_CASE("bytes that a shortened or removed cache file lacks are read from the server") {
  const CachedObject object;
  load(object);
  // The entry keeps the file open, so the file has its full size.
  const auto entry = object.entry();
  const Plan plan = cached_plan(*entry);
  SUBCASE("cut short") { std::filesystem::resize_file(object.folder.data(), 500'000); }
  SUBCASE("removed") { std::filesystem::remove(object.folder.data()); }
  SUBCASE("a folder in its place") {
    std::filesystem::remove(object.folder.data());
    std::filesystem::create_directory(object.folder.data());
  }
  Session session(options_with(1 << 20, 64 << 20));
  object.add_to(session, entry);
  CHECK(check_load(session, plan).scheduler.cache_failures > 0);
}

TEST_CASE("bytes that the cache lacks are read from the server, and the others from the cache") {
  const CachedObject object;
  load(object);
  object.entry()->forget(300'000, 500'000);
  const SessionStats stats = load(object, 150'000);
  CHECK(stats.scheduler.cached_bytes == kObjectBytes - 200'000);
  CHECK(load(object).scheduler.cached_bytes == kObjectBytes);
}

TEST_CASE("an item with an unexpected digest is read from the server, even if it is cached") {
  const CachedObject object;
  load(object);
  const auto entry = object.entry();
  Plan plan = cached_plan(*entry);
  // Simulates that wrong bytes were cached: they match the cache's checksum, but not the manifest.
  const std::string wrong = random_data(kItemBytes, 7);
  entry->write(0, std::as_bytes(std::span(wrong)), {kItemBytes});
  plan = cached_plan(*entry);
  plan.digests.items.resize(plan.items.size());
  for (std::size_t i = 0; i < plan.items.size(); ++i) {
    const auto bytes = std::as_bytes(std::span(kObject));
    const auto own = bytes.subspan(plan.items[i].begin, plan.items[i].size());
    plan.digests.items[i] = {Crc::kCrc64Nvme, compute(Crc::kCrc64Nvme, own), 0};
  }
  Session session(options_with(1 << 20, 64 << 20));
  object.add_to(session, entry);
  CHECK(check_load(session, plan).scheduler.cache_failures == 1);
  CHECK(load(object).scheduler.cached_bytes == kObjectBytes);
}

TEST_CASE("a load to a device fills the cache, and the next one reads from it") {
  const FakeDriver driver;
  const CachedObject object;
  for (const std::uint64_t expected : {std::uint64_t{0}, kObjectBytes}) {
    const auto entry = object.entry();
    Session session(options_with(1 << 20));
    object.add_to(session, entry);
    const Plan plan = cached_plan(*entry, 0);
    Consumer(session, plan).load(plan, kObject);
    CHECK(session.stats().scheduler.cached_bytes == expected);
  }
  object.flip_byte(7);
  const auto entry = object.entry();
  Session session(options_with(1 << 20));
  object.add_to(session, entry);
  const Plan plan = cached_plan(*entry, 0);
  Consumer(session, plan).load(plan, kObject);
  CHECK(session.stats().scheduler.cache_failures == 1);
}

TEST_CASE("if both cache and server fail, the load ends with the error of the server") {
  const TemporaryEntry folder;
  const auto entry = std::make_shared<CacheEntry>(folder.path(), kObjectBytes);
  entry->write(0, std::as_bytes(std::span(kObject)), std::vector<std::uint64_t>(1, kObjectBytes));
  const LoopbackServer server(kObject, [](int) { return LoopbackFault::kUnavailable; });
  SessionOptions options = options_with(1 << 20, 64 << 20);
  options.retry.max_attempts = 2;
  options.retry.block_deadline_s = 1;
  Session session(options);
  session.add_http(target_of(server), kObjectBytes, "", "ETag", false);
  session.add_file(folder.data(), kObjectBytes, "", {});
  Plan plan;
  plan.items = {{1, 0, kObjectBytes}};
  plan.spans = {{1, 0, kObjectBytes, 0, 1}};
  plan.cached = {{0, 0, *entry->checksum(0, kObjectBytes) ^ 1}};
  session.start(plan);
  std::optional<ReadError> error;
  while (!error) {
    const Delivery delivery = session.wait(30);
    error = delivery.error;
    REQUIRE((error || !delivery.is_finished));
  }
  CHECK(error->source == 0);
}

}  // namespace
}  // namespace streamer
