// These tests use the fake driver, which refuses copies from memory that is not pinned and counts
// pinned bytes.
#include "cuda/pinned_ring.h"

#include <doctest/doctest.h>

#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/fake_driver.h"
#include "cuda/runtime.h"

namespace streamer {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

std::shared_ptr<RingUser> user_of(PinnedRing& ring, std::uint64_t limit_bytes,
                                  std::size_t slot_bytes, int* woken = nullptr) {
  auto user = std::make_shared<RingUser>();
  user->limit_bytes = limit_bytes;
  user->slot_bytes = slot_bytes;
  user->wake = [woken] {
    if (woken != nullptr) ++*woken;
  };
  ring.join(user);
  return user;
}

TEST_CASE("a returned slot is used again without pinning") {
  const FakeDriver fake;
  const auto ring = CudaRuntime::instance().ring(0);
  const auto user = user_of(*ring, 8 * kMiB, 2 * kMiB);
  auto slot = ring->try_acquire(user);
  REQUIRE(slot);
  CHECK(slot->pin());
  const std::byte* first = slot->data();
  slot.reset();
  user->slot_bytes = kMiB;
  slot = ring->try_acquire(user);
  CHECK_FALSE(slot->pin());
  CHECK(slot->data() == first);
  CHECK(slot->capacity() == 2 * kMiB);
  CHECK(fake.calls("cuMemHostRegister_v2") == 1);
  CHECK(fake.pinned_bytes() == 2 * kMiB);
  slot.reset();
  ring->leave(user);
}

TEST_CASE("among equal slots, the one that was returned last is used first") {
  const FakeDriver fake;
  const auto ring = CudaRuntime::instance().ring(0);
  const auto user = user_of(*ring, 8 * kMiB, 2 * kMiB);
  auto one = ring->try_acquire(user);
  auto two = ring->try_acquire(user);
  one->pin();
  two->pin();
  const std::byte* last = one->data();
  two.reset();
  one.reset();
  one = ring->try_acquire(user);
  one->pin();
  CHECK(one->data() == last);
  one.reset();
  ring->leave(user);
}

TEST_CASE("no user gets more than its limit, and it is woken when a slot comes back") {
  const FakeDriver fake;
  const auto ring = CudaRuntime::instance().ring(0);
  int woken = 0;
  const auto user = user_of(*ring, 2 * kMiB, kMiB, &woken);
  auto one = ring->try_acquire(user);
  auto two = ring->try_acquire(user);
  CHECK(ring->try_acquire(user) == nullptr);
  one.reset();
  CHECK(woken == 1);
  two.reset();
  CHECK(woken == 1);  // the user is woken once, and must request a slot again
  CHECK(ring->peak_bytes(*user) == 2 * kMiB);
  ring->leave(user);
}

TEST_CASE("a slot that one user returns can be used by another user") {
  const FakeDriver fake;
  const auto ring = CudaRuntime::instance().ring(0);
  int woken = 0;
  const auto rich = user_of(*ring, 4 * kMiB, kMiB);
  const auto poor = user_of(*ring, kMiB, kMiB, &woken);
  auto slot = ring->try_acquire(rich);
  slot->pin();
  // The ring has already pinned as many bytes as this user's limit.
  CHECK(ring->try_acquire(poor) == nullptr);
  slot.reset();
  CHECK(woken == 1);
  CHECK(ring->try_acquire(poor) != nullptr);
  ring->leave(rich);
  ring->leave(poor);
}

TEST_CASE("free slots that are too small are replaced by a larger one") {
  const FakeDriver fake;
  const auto ring = CudaRuntime::instance().ring(0);
  const auto user = user_of(*ring, 4 * kMiB, kMiB);
  {
    std::vector<std::shared_ptr<PinnedSlot>> small;
    for (int i = 0; i < 4; ++i) {
      small.push_back(ring->try_acquire(user));
      small.back()->pin();
    }
  }
  user->slot_bytes = 4 * kMiB;
  auto large = ring->try_acquire(user);
  REQUIRE(large);
  large->pin();
  CHECK(fake.pinned_bytes() == 4 * kMiB);
  large.reset();
  ring->leave(user);
}

TEST_CASE("unused slots are unpinned on request, and slots in use are not") {
  const FakeDriver fake;
  const auto ring = CudaRuntime::instance().ring(0);
  const auto user = user_of(*ring, 4 * kMiB, kMiB);
  auto used = ring->try_acquire(user);
  used->pin();
  {
    user->slot_bytes = 2 * kMiB;
    auto free = ring->try_acquire(user);
    free->pin();
  }
  CHECK(CudaRuntime::instance().release_free() == 2 * kMiB);
  CHECK(fake.pinned_bytes() == kMiB);
  CHECK(ring->stats().pinned_bytes == kMiB);
  used.reset();
  ring->leave(user);
}

TEST_CASE("if mapped memory cannot be locked, the driver allocates memory") {
  const FakeDriver fake;
  fake.fail("cuMemHostRegister_v2", 801, 0);
  const auto ring = CudaRuntime::instance().ring(0);
  const auto user = user_of(*ring, kMiB, kMiB);
  ring->try_acquire(user)->pin();
  CHECK(fake.calls("cuMemHostAlloc") == 1);
  CHECK(fake.pinned_bytes() == kMiB);
  ring->leave(user);
}

TEST_CASE(
    "memory that cannot be pinned is an error with the number of bytes, and reserves nothing") {
  const FakeDriver fake;
  fake.fail("cuMemHostRegister_v2", 2, 0);
  fake.fail("cuMemHostAlloc", 2, 0);
  const auto ring = CudaRuntime::instance().ring(0);
  const auto user = user_of(*ring, kMiB, kMiB);
  auto slot = ring->try_acquire(user);
  try {
    slot->pin();
    FAIL("it was pinned");
  } catch (const DeviceFailure& failure) {
    CHECK(failure.error().storage_code == "CUDA_ERROR_OUT_OF_MEMORY");
    CHECK(failure.error().detail ==
          "cuda:0: pinning 1048576 bytes of host memory for copies: the allocation failed: out of "
          "memory");
  }
  slot.reset();
  CHECK(ring->stats().pinned_bytes == 0);
  ring->leave(user);
}

TEST_CASE("a slot that comes back wakes every user that waits for one") {
  const FakeDriver fake;
  const auto ring = CudaRuntime::instance().ring(0);
  int woken[3] = {};
  const auto holder = user_of(*ring, kMiB, kMiB, &woken[0]);
  const auto one = user_of(*ring, kMiB, kMiB, &woken[1]);
  const auto two = user_of(*ring, kMiB, kMiB, &woken[2]);
  auto slot = ring->try_acquire(holder);
  CHECK(ring->try_acquire(one) == nullptr);
  CHECK(ring->try_acquire(two) == nullptr);
  slot.reset();
  CHECK(woken[0] == 0);
  CHECK(woken[1] == 1);
  CHECK(woken[2] == 1);
  for (const auto& user : {holder, one, two}) ring->leave(user);
}

// A user with a thread that prepares slots until this object is destroyed.
class Preparer {
 public:
  Preparer(PinnedRing& ring, std::shared_ptr<RingUser> user) : ring_(ring), user_(std::move(user)) {
    ring_.begin_preparing(user_);
    thread_ = std::thread([this] {
      try {
        ring_.prepare(user_);
      } catch (const DeviceFailure& failure) {
        error = failure.error();
      }
    });
  }
  ~Preparer() { end(); }

  void end() {
    ring_.end_preparing(user_);
    if (thread_.joinable()) thread_.join();
  }

  std::shared_ptr<PinnedSlot> wait_for_slot() {
    while (true) {
      if (auto slot = ring_.try_acquire(user_)) return slot;
      std::this_thread::yield();
    }
  }

  std::optional<ReadError> error;  // set by end()

 private:
  PinnedRing& ring_;
  const std::shared_ptr<RingUser> user_;
  std::thread thread_;
};

TEST_CASE("the first slots are pinned together before they are needed, and are used one by one") {
  const FakeDriver fake;
  const auto ring = CudaRuntime::instance().ring(0);
  int woken = 0;
  const auto user = user_of(*ring, 8 * kMiB, kMiB, &woken);
  user->first_bytes = 4 * kMiB;
  {
    Preparer preparer(*ring, user);
    std::vector<std::shared_ptr<PinnedSlot>> slots;
    while (slots.size() < 4) slots.push_back(preparer.wait_for_slot());
    CHECK(fake.calls("cuMemHostRegister_v2") == 1);
    CHECK(fake.pinned_bytes() == 4 * kMiB);
    std::set<const std::byte*> places;
    for (const auto& slot : slots) {
      CHECK_FALSE(slot->pin());
      CHECK(slot->capacity() == kMiB);
      places.insert(slot->data());
    }
    CHECK(places.size() == 4);
  }
  CHECK(ring->stats().free_bytes == 4 * kMiB);
  CHECK(CudaRuntime::instance().release_free() == 4 * kMiB);
  CHECK(fake.pinned_bytes() == 0);
  ring->leave(user);
}

TEST_CASE("a user that lacks a slot gets more slots up to its limit, and is woken") {
  const FakeDriver fake;
  const auto ring = CudaRuntime::instance().ring(0);
  int woken = 0;
  const auto user = user_of(*ring, 6 * kMiB, kMiB, &woken);
  user->first_bytes = 2 * kMiB;
  {
    Preparer preparer(*ring, user);
    std::vector<std::shared_ptr<PinnedSlot>> slots;
    while (slots.size() < 6) slots.push_back(preparer.wait_for_slot());
    CHECK(ring->try_acquire(user) == nullptr);
    CHECK(ring->stats().pinned_bytes == 6 * kMiB);
    CHECK(fake.calls("cuMemHostRegister_v2") == 2);
    preparer.end();
    CHECK_FALSE(preparer.error);
  }
  ring->leave(user);
}

TEST_CASE(
    "slots of an earlier user that exceed the limit of this user are replaced by smaller ones") {
  const FakeDriver fake;
  const auto ring = CudaRuntime::instance().ring(0);
  const auto earlier = user_of(*ring, 8 * kMiB, 4 * kMiB);
  CHECK(ring->try_acquire(earlier)->pin());  // and returned at once
  ring->leave(earlier);
  const auto user = user_of(*ring, 2 * kMiB, kMiB);
  user->first_bytes = 2 * kMiB;
  {
    Preparer preparer(*ring, user);
    const auto one = preparer.wait_for_slot();  // waited for ever
    const auto two = preparer.wait_for_slot();
    CHECK(one->capacity() == kMiB);
    CHECK(ring->stats().pinned_bytes == 2 * kMiB);
    preparer.end();
    CHECK_FALSE(preparer.error);
  }
  ring->leave(user);
}

TEST_CASE("if the system refuses further memory, the user continues with the existing slots") {
  const FakeDriver fake;
  const auto ring = CudaRuntime::instance().ring(0);
  const auto user = user_of(*ring, 6 * kMiB, kMiB);
  user->first_bytes = 2 * kMiB;
  {
    Preparer preparer(*ring, user);
    auto one = preparer.wait_for_slot();
    fake.fail("cuMemHostRegister_v2", 2, 0);
    fake.fail("cuMemHostAlloc", 2, 0);
    auto two = preparer.wait_for_slot();
    CHECK(ring->try_acquire(user) == nullptr);  // requests one more slot, and pinning it fails
    while (fake.calls("cuMemHostAlloc") < 2) std::this_thread::yield();
    one.reset();
    one = preparer.wait_for_slot();
    preparer.end();
    CHECK_FALSE(preparer.error);
    CHECK(ring->stats().pinned_bytes == 2 * kMiB);
  }
  ring->leave(user);
}

TEST_CASE("if the system refuses the first slot, the error has the number of bytes") {
  const FakeDriver fake;
  fake.fail("cuMemHostRegister_v2", 2, 0);
  fake.fail("cuMemHostAlloc", 2, 0);
  const auto ring = CudaRuntime::instance().ring(0);
  const auto user = user_of(*ring, 4 * kMiB, kMiB);
  user->first_bytes = 4 * kMiB;
  {
    Preparer preparer(*ring, user);
    // The first call is for many slots, and the second for one.
    while (fake.calls("cuMemHostAlloc") < 2) std::this_thread::yield();
    preparer.end();
    REQUIRE(preparer.error);
    CHECK(preparer.error->storage_code == "CUDA_ERROR_OUT_OF_MEMORY");
    CHECK(preparer.error->detail.find("pinning 1048576 bytes") != std::string::npos);
  }
  CHECK(ring->stats().pinned_bytes == 0);
  ring->leave(user);
}

}  // namespace
}  // namespace streamer
