// Against the fake driver, which refuses copies from memory that is not pinned and counts what is.
#include "cuda/pinned_ring.h"

#include <doctest/doctest.h>

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

TEST_CASE("a slot that comes back is used again without pinning") {
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

TEST_CASE("of equal slots the one given back last is used again") {
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

TEST_CASE("no user gets more than its limit, and is woken when a slot comes back") {
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
  CHECK(woken == 1);  // it was told once; it asks again
  CHECK(ring->peak_bytes(*user) == 2 * kMiB);
  ring->leave(user);
}

TEST_CASE("one user's slot is another's when it comes back") {
  const FakeDriver fake;
  const auto ring = CudaRuntime::instance().ring(0);
  int woken = 0;
  const auto rich = user_of(*ring, 4 * kMiB, kMiB);
  const auto poor = user_of(*ring, kMiB, kMiB, &woken);
  auto slot = ring->try_acquire(rich);
  slot->pin();
  CHECK(ring->try_acquire(poor) == nullptr);  // the ring already pins what it may have
  slot.reset();
  CHECK(woken == 1);
  CHECK(ring->try_acquire(poor) != nullptr);
  ring->leave(rich);
  ring->leave(poor);
}

TEST_CASE("free slots that are too small make room for a larger one") {
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

TEST_CASE("what is free is unpinned on request, what is in use is not") {
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

TEST_CASE("where our memory cannot be locked the driver's own is used") {
  const FakeDriver fake;
  fake.fail("cuMemHostRegister_v2", 801, 0);
  const auto ring = CudaRuntime::instance().ring(0);
  const auto user = user_of(*ring, kMiB, kMiB);
  ring->try_acquire(user)->pin();
  CHECK(fake.calls("cuMemHostAlloc") == 1);
  CHECK(fake.pinned_bytes() == kMiB);
  ring->leave(user);
}

TEST_CASE("memory that cannot be pinned is an error with its bytes, and takes nothing") {
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

TEST_CASE("a slot that comes back wakes everybody who waits for one") {
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

}  // namespace
}  // namespace streamer
