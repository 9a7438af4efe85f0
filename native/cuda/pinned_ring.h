// The pinned memory of one device, in slots that all loads of the process share.
//
// Contract
//  - A slot holds one block on its way to the device. Its last owner gives it back; then any user
//    may take it. A returned slot stays pinned for the next block, until release_free().
//  - No user holds more than its limit, and the ring pins no more for a user once it has pinned
//    that much in all.
//  - try_acquire() never waits and never calls the driver. A thread of the user pins slots in
//    prepare(), many at once. Without such a thread, the thread that fills a slot pins it.
//  - A user that got no slot is woken when a slot comes back or is prepared.
//
// Thread-safe. Holds no lock while it calls the driver.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda/pinned_memory.h"

namespace streamer {

class PinnedRing;

// The limits and counters of one load in a ring.
struct RingUser {
  std::uint64_t limit_bytes = 0;
  std::size_t slot_bytes = 0;     // the size of its largest block, at most the limit
  std::uint64_t first_bytes = 0;  // pinned before they are requested, but never beyond the limit
  // Called from any thread, under the ring's lock, so it may only set a flag and notify.
  std::function<void()> wake;

  // Guarded by the ring's lock.
  bool is_waiting = false;
  bool is_prepared_for = false;  // a thread runs prepare() for this user
  bool is_short = false;         // requested a slot within its limit, and got none
  bool is_ending = false;
  std::uint64_t held_bytes = 0;
  std::uint64_t peak_bytes = 0;
};

class PinnedSlot {
 public:
  ~PinnedSlot();
  PinnedSlot(const PinnedSlot&) = delete;
  PinnedSlot& operator=(const PinnedSlot&) = delete;

  // Must be called before data(). Returns false if an earlier owner already pinned the slot. Throws
  // DeviceFailure.
  bool pin();
  std::byte* data() const { return memory_.data(); }
  std::size_t capacity() const { return capacity_; }

  // Leaves the memory to a device that may still read it. The ring never uses it again.
  void abandon();

 private:
  friend class PinnedRing;
  PinnedSlot(std::shared_ptr<PinnedRing> ring, std::shared_ptr<RingUser> user, std::size_t capacity)
      : ring_(std::move(ring)), user_(std::move(user)), capacity_(capacity) {}

  std::shared_ptr<PinnedRing> ring_;
  std::shared_ptr<RingUser> user_;
  std::size_t capacity_;
  PinnedMemory memory_;
  std::vector<PinnedMemory> evicted_;  // memory too small for this slot; pin() frees it
};

struct RingStats {
  std::uint64_t pinned_bytes = 0;     // in slots, free or in use
  std::uint64_t free_bytes = 0;       // the part of pinned_bytes in unused slots
  std::uint64_t abandoned_bytes = 0;  // left to a device that did not answer
};

class PinnedRing : public std::enable_shared_from_this<PinnedRing> {
 public:
  explicit PinnedRing(std::shared_ptr<const CudaDevice> device) : device_(std::move(device)) {}

  void join(const std::shared_ptr<RingUser>& user);
  void leave(const std::shared_ptr<RingUser>& user);

  // Returns a slot of at least the user's size; null if no such slot is available now.
  std::shared_ptr<PinnedSlot> try_acquire(const std::shared_ptr<RingUser>& user);

  // Until end_preparing(), a thread of the user runs prepare(), which pins slots before the user
  // needs them. If the system locks no more memory, the user continues with its existing slots.
  // Throws DeviceFailure if there are none.
  void begin_preparing(const std::shared_ptr<RingUser>& user);
  void prepare(const std::shared_ptr<RingUser>& user);
  void end_preparing(const std::shared_ptr<RingUser>& user);

  // Unpins every unused slot, and returns the number of their bytes.
  std::uint64_t release_free();

  RingStats stats();
  std::uint64_t peak_bytes(const RingUser& user);
  const std::shared_ptr<const CudaDevice>& device() const { return device_; }

 private:
  friend class PinnedSlot;

  bool take_free(PinnedSlot& slot);
  bool make_room(const RingUser& user, std::size_t bytes, std::vector<PinnedMemory>& evicted);
  std::size_t room_to_prepare(RingUser& user, std::vector<PinnedMemory>& evicted);
  void pin_slots(RingUser& user, std::size_t count);
  bool has_free(const RingUser& user) const;
  void give_room_back(std::uint64_t bytes);
  bool can_do_without(RingUser& user, const DeviceFailure& failure);
  void give_back(PinnedSlot& slot);
  void wake_waiting();

  const std::shared_ptr<const CudaDevice> device_;
  std::mutex mutex_;  // guards everything below
  std::condition_variable has_need_;
  std::vector<PinnedMemory> free_;
  std::vector<std::shared_ptr<RingUser>> users_;
  RingStats stats_;
};

}  // namespace streamer
