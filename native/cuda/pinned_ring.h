// The pinned memory of one device, in slots that all loads of the process share.
//
// Contract
//  - A slot holds one block on its way to the device. It is given back by its last owner, and then
//    is anybody's. What is given back stays pinned for the next block, until release_free().
//  - No user holds more than its limit, and the ring pins nothing more once it has that much.
//  - try_acquire() never waits and never calls the driver. A thread of the user's own pins slots in
//    prepare(), many at once; if none does, the thread that wants to fill a slot pins it.
//  - A user that got nothing is woken when a slot comes back, or was prepared.
//
// Thread-safe. Locks nothing while it calls the driver.
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

// One load's account with a ring.
struct RingUser {
  std::uint64_t limit_bytes = 0;
  std::size_t slot_bytes = 0;     // of its largest block; no larger than the limit
  std::uint64_t first_bytes = 0;  // prepared before they are asked for, within the limit
  // Called from any thread, under the ring's lock: it may only set a flag and notify.
  std::function<void()> wake;

  // Guarded by the ring's lock.
  bool is_waiting = false;
  bool is_prepared_for = false;  // a thread pins for it
  bool is_short = false;         // asked for a slot that the limit allows, and got none
  bool is_ending = false;
  std::uint64_t held_bytes = 0;
  std::uint64_t peak_bytes = 0;
};

class PinnedSlot {
 public:
  ~PinnedSlot();
  PinnedSlot(const PinnedSlot&) = delete;
  PinnedSlot& operator=(const PinnedSlot&) = delete;

  // Before data(). False where it was pinned before, by an earlier owner. Throws DeviceFailure.
  bool pin();
  std::byte* data() const { return memory_.data(); }
  std::size_t capacity() const { return capacity_; }

  // Leaves the memory to a device that may still read it: it is never used again.
  void abandon();

 private:
  friend class PinnedRing;
  PinnedSlot(std::shared_ptr<PinnedRing> ring, std::shared_ptr<RingUser> user, std::size_t capacity)
      : ring_(std::move(ring)), user_(std::move(user)), capacity_(capacity) {}

  std::shared_ptr<PinnedRing> ring_;
  std::shared_ptr<RingUser> user_;
  std::size_t capacity_;
  PinnedMemory memory_;
  std::vector<PinnedMemory> evicted_;  // too small for this slot, to be freed by pin()
};

struct RingStats {
  std::uint64_t pinned_bytes = 0;     // in slots, free or in use
  std::uint64_t free_bytes = 0;       // of these, in slots that nobody uses
  std::uint64_t abandoned_bytes = 0;  // left to a device that did not answer
};

class PinnedRing : public std::enable_shared_from_this<PinnedRing> {
 public:
  explicit PinnedRing(std::shared_ptr<const CudaDevice> device) : device_(std::move(device)) {}

  void join(const std::shared_ptr<RingUser>& user);
  void leave(const std::shared_ptr<RingUser>& user);

  // A slot of at least the user's size; null when there is none for it now.
  std::shared_ptr<PinnedSlot> try_acquire(const std::shared_ptr<RingUser>& user);

  // A thread of the user's own calls prepare(), which pins slots ahead of the user's need until
  // end_preparing(). If the system locks no more memory, the user goes on with the slots it has.
  // Throws DeviceFailure if it has none.
  void begin_preparing(const std::shared_ptr<RingUser>& user);
  void prepare(const std::shared_ptr<RingUser>& user);
  void end_preparing(const std::shared_ptr<RingUser>& user);

  // Unpins every slot that nobody uses; returns their bytes.
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
