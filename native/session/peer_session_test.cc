// Loads that read from the caches of other machines: whatever these give, each item is right, and
// only what is right is in the own cache.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cache/temporary_entry_fixture.h"
#include "cache/writer.h"
#include "integrity/crc.h"
#include "session/device_session_fixture.h"

namespace streamer {
namespace {

constexpr std::uint64_t kObjectBytes = 2'050'000;
const std::string kObject = random_data(kObjectBytes, 21);

std::uint64_t crc_of(const Item& item) {
  const auto bytes = std::as_bytes(std::span(kObject));
  return compute(Crc::kCrc32c, bytes.subspan(item.begin, item.size()));
}

// A load of an object from a storage (source 0) and a peer (source 1), with a cache of its own.
class PeerLoad {
 public:
  explicit PeerLoad(LoopbackServer::Script of_peer = {}, std::uint64_t item_bytes = kItemBytes)
      : peer_(kObject, std::move(of_peer)), session_(options_with(1 << 20, 400'000)) {
    for (const LoopbackServer* server : {&storage_, &peer_}) {
      session_.add_http(target_of(*server), kObjectBytes, "", "ETag", false);
    }
    entry_ = std::make_shared<CacheEntry>(folder_.path(), kObjectBytes);
    session_.write_to_cache(0, entry_, true);
    session_.write_to_cache(1, entry_, true);
    for (std::uint64_t begin = 0; begin < kObjectBytes; begin += item_bytes) {
      plan_.items.push_back({0, begin, std::min(kObjectBytes, begin + item_bytes)});
    }
    plan_.peers = {1};
  }

  // All items are of the peer from the beginning.
  void read_from_peer() {
    for (std::uint32_t i = 0; i < plan_.items.size(); ++i) {
      Item& item = plan_.items[i];
      plan_.cached.push_back({i, 0, crc_of(item)});
      item.source = 1;
      plan_.spans.push_back({1, item.begin, item.end, i, 1});
    }
    session_.start(plan_);
  }

  // All items are held back.
  void hold_back() {
    plan_.held_back.resize(plan_.items.size());
    std::iota(plan_.held_back.begin(), plan_.held_back.end(), 0U);
    session_.start(plan_);
  }

  void release(std::uint32_t item, std::uint32_t source) {
    session_.release({{item, source, crc_of(plan_.items[item])}});
  }

  // Reads all; compares each tensor, and what is in the cache at the end.
  void check() {
    std::size_t delivered = 0;
    for (bool is_finished = false; !is_finished;) {
      const Delivery delivery = session_.wait(60);
      REQUIRE_MESSAGE(!delivery.error, delivery.error->detail);
      REQUIRE((delivery.is_finished || !delivery.items.empty()));
      for (const std::uint32_t index : delivery.items) {
        const Item& item = plan_.items[index];
        const Memory memory = std::move(session_.take({index}).front());
        const std::string_view got(reinterpret_cast<const char*>(memory.data()), memory.size());
        CHECK(got == std::string_view(kObject).substr(item.begin, item.size()));
        ++delivered;
      }
      is_finished = delivery.is_finished;
    }
    CHECK(delivered == plan_.items.size());
    CHECK(session_.stats().scheduler.retries == 0);
    CHECK(session_.received_bytes()[0] == kObjectBytes - peer_bytes());
    session_.close();
    check_cache(kObjectBytes);
  }

  // Compares what is in the cache, as another process finds it.
  void check_cache(std::uint64_t held_bytes) {
    REQUIRE(CacheWriter::of_process().wait_until_idle(60));
    CacheEntry found(folder_.path(), kObjectBytes);
    CHECK(found.held_bytes() == held_bytes);
    CHECK(found.check() == 0);
    for (const Item& item : plan_.items) {
      const auto crc = found.checksum(item.begin, item.end);
      CHECK((!crc || crc == crc_of(item)));
    }
  }

  std::uint64_t peer_bytes() {
    const auto bytes = session_.peer_bytes();
    const auto found = bytes.find(1);
    return found == bytes.end() ? 0 : found->second;
  }

  Session& session() { return session_; }
  const Plan& plan() const { return plan_; }
  std::uintmax_t journal_bytes() const { return std::filesystem::file_size(folder_.journal()); }

 private:
  const LoopbackServer storage_{kObject};
  const LoopbackServer peer_;
  const TemporaryEntry folder_;
  std::shared_ptr<CacheEntry> entry_;
  Session session_;
  Plan plan_;
};

TEST_CASE("a peer that holds everything gives everything, and it is in the own cache afterwards") {
  PeerLoad load;
  load.read_from_peer();
  load.check();
  CHECK(load.peer_bytes() == kObjectBytes);
}

TEST_CASE("what a broken peer does not give is read from the storage, once, and only that") {
  for (const LoopbackFault fault :
       {LoopbackFault::kFlip, LoopbackFault::kCut, LoopbackFault::kCutAtOnce,
        LoopbackFault::kSilent, LoopbackFault::kUnavailable}) {
    for (const int good : {0, 5}) {
      CAPTURE(static_cast<int>(fault));
      PeerLoad load(
          [fault, good](int number) { return number < good ? LoopbackFault::kNone : fault; });
      load.read_from_peer();
      load.check();
      CHECK(load.peer_bytes() < kObjectBytes);
      CHECK(load.session().stats().scheduler.cache_failures > 0);
    }
  }
}

TEST_CASE("items that are released at random while their peer dies are all right") {
  for (int dies_after = 0; dies_after < 24; dies_after += 6) {
    PeerLoad load([dies_after](int number) {
      return number < dies_after ? LoopbackFault::kNone : LoopbackFault::kCutAtOnce;
    });
    load.hold_back();
    std::jthread guide([&load, dies_after] {
      const auto count = static_cast<std::uint32_t>(load.plan().items.size());
      for (std::uint32_t i = 0; i < count; ++i) {
        const std::uint32_t item = i * 5 % count;  // 5 and 21 have no common divisor
        load.release(item, (i + static_cast<std::uint32_t>(dies_after)) % 3 == 0 ? 0 : 1);
      }
    });
    load.check();
  }
}

TEST_CASE("nothing that a peer sent is in the cache before its item is complete and right") {
  // Each item has two blocks. The peer sends only the first one.
  PeerLoad load(
      [](int number) { return number == 0 ? LoopbackFault::kNone : LoopbackFault::kSilent; });
  load.hold_back();
  load.release(0, 1);
  while (load.session().received_bytes()[1] == 0) {
    REQUIRE_FALSE(load.session().wait(0.01).error);
  }
  SUBCASE("the load is closed") {
    load.session().close();
    load.check_cache(0);
    CHECK(load.journal_bytes() == 0);
  }
  SUBCASE("the load goes on without the peer") {
    for (std::uint32_t i = 1; i < load.plan().items.size(); ++i) load.release(i, i % 2);
    load.check();
    CHECK(load.peer_bytes() == 0);
  }
}

TEST_CASE("a load with items that no one releases can be closed at any time") {
  for (std::uint32_t released = 0; released < 21; released += 4) {
    PeerLoad load;
    load.hold_back();
    for (std::uint32_t item = 0; item < released; ++item) load.release(item, item % 2);
    std::jthread guide([&load, released] {
      for (std::uint32_t item = released; item < 20; ++item) load.release(item, item % 2);
    });
    load.session().take(load.session().wait(released == 0 ? 0 : 30).items);
    load.session().close();
    CHECK(load.session().wait(0).is_finished);
    REQUIRE(CacheWriter::of_process().wait_until_idle(60));
  }
}

TEST_CASE("each of many small items of a peer costs one record in the journal") {
  PeerLoad load({}, 41);
  load.hold_back();
  std::vector<ReleasedItem> released;
  for (std::uint32_t i = 0; i < load.plan().items.size(); ++i) {
    released.push_back({i, 1, crc_of(load.plan().items[i])});
  }
  load.session().release(released);
  load.check();
  CHECK(load.peer_bytes() == kObjectBytes);
  // An item is in two pieces if a block ends in it.
  const std::uint64_t blocks = load.session().stats().scheduler.blocks;
  CHECK(load.journal_bytes() >= load.plan().items.size() * kJournalRecordBytes);
  CHECK(load.journal_bytes() <= (load.plan().items.size() + blocks) * kJournalRecordBytes);
}

}  // namespace
}  // namespace streamer
