// Takes blocks from pinned memory to the final places of their tensors on one device, for one load.
//
// Contract
//  - Copies run in the order of submission on a stream of our own, which waits for what the
//    consumer's stream had been given when it allocated the memory, and for nothing else.
//  - A block counts as landed, and its slot is given back, only after the event behind its copies
//    fired.
//  - The first failure ends the load. Copies under way are waited for before run() returns; what a
//    device does not finish in time is left to it: never freed, never used again.
//
// One thread calls run(), and one prepare_slots(); any thread may call the rest. Calls the
// scheduler without holding a lock.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "cuda/copy_batch.h"
#include "cuda/device.h"
#include "schedule/scheduler.h"

namespace streamer {

class DeviceCopier : public DeviceSink {
 public:
  // Holds at most `pinned_bytes`, in slots of `slot_bytes`, of which `first_slots` are pinned
  // before they are asked for. Throws DeviceFailure.
  DeviceCopier(Scheduler& scheduler, std::shared_ptr<PinnedRing> ring, std::uint64_t pinned_bytes,
               std::size_t slot_bytes, std::uint64_t first_slots);
  ~DeviceCopier() override;
  DeviceCopier(const DeviceCopier&) = delete;
  DeviceCopier& operator=(const DeviceCopier&) = delete;

  const CudaDevice& device() const { return *device_; }
  // What the scheduler must know of this device.
  DeviceSlots lane();

  // Copies started from here on wait for what `consumer` holds now. Throws DeviceFailure.
  void wait_for(CudaStreamHandle consumer);
  // For those who write to targets without a copy of ours: waits until all that wait_for() was told
  // of is done. False once `is_cancelled`. Throws DeviceFailure.
  bool wait_until_free(const std::function<bool()>& is_cancelled);

  void submit(Lane lane, Block block) override;
  // Pins slots ahead of their need until stop(). Before its thread starts, so that no reader pins
  // one: expect_prepared_slots().
  void expect_prepared_slots() { ring_->begin_preparing(user_); }
  void prepare_slots();
  void run();
  // Makes run() return: nothing more is started.
  void stop();

  std::uint64_t peak_pinned_bytes() const;
  // Copies that the device had not finished when the load ended: their targets must not be freed.
  bool has_abandoned() const { return has_abandoned_; }

 private:
  struct Submitted {
    Lane lane;
    Block block;
  };
  struct Flight {
    Lane lane;
    Block block;
    CudaEvent event;
    TimePoint started;
  };

  void copy_until_stopped();
  bool wait_for_work(std::deque<Submitted>& work);
  void start(Submitted submitted);
  void land_finished();
  void drain();
  CudaEvent take_event();
  void note_free_slot();

  Scheduler& scheduler_;
  const std::shared_ptr<PinnedRing> ring_;
  const std::shared_ptr<const CudaDevice> device_;
  const std::shared_ptr<RingUser> user_ = std::make_shared<RingUser>();
  std::optional<CudaStream> stream_;
  CopyBatch copies_;                     // of run() alone
  std::deque<Flight> in_flight_;         // as copies_, oldest first
  std::vector<CudaEvent> spare_events_;  // as in_flight_
  std::atomic<bool> has_abandoned_{false};
  std::atomic<std::uint64_t> waits_{0};   // calls of wait_for()
  std::atomic<std::uint64_t> waited_{0};  // of these, what is known to be done

  std::mutex mutex_;  // guards everything below
  std::condition_variable has_work_;
  std::deque<Submitted> submitted_;
  bool has_free_slot_ = false;  // a slot came back to the ring
  bool is_stopped_ = false;
};

}  // namespace streamer
