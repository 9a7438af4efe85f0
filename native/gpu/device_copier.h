// Copies blocks from pinned memory to the final places of their tensors on one device, for one
// load.
//
// Contract
//  - Copies run in the order of submission on a stream of our own. The stream waits for the work
//    that the consumer's stream held when the consumer allocated the memory, and for nothing else.
//  - A block counts as landed, and its slot is returned, only after the event that follows its
//    copies fired.
//  - The first failure ends the load. run() waits for copies under way before it returns. The slots
//    of copies that the device does not finish in time are abandoned: never freed, never used
//    again.
//
// One thread calls run(), and one prepare_slots(); any thread may call the rest. No lock is held
// during calls of the scheduler.
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
  // Holds at most `pinned_bytes`, in slots of `slot_bytes`. The first `first_slots` of them are
  // pinned before they are requested. Throws DeviceFailure.
  DeviceCopier(Scheduler& scheduler, std::shared_ptr<PinnedRing> ring, std::uint64_t pinned_bytes,
               std::size_t slot_bytes, std::uint64_t first_slots);
  ~DeviceCopier() override;
  DeviceCopier(const DeviceCopier&) = delete;
  DeviceCopier& operator=(const DeviceCopier&) = delete;

  const CudaDevice& device() const { return *device_; }
  // Returns what the scheduler needs to know about this device.
  DeviceSlots lane();

  // Copies that start later wait for the work that is on the stream `consumer` now. Throws
  // DeviceFailure.
  void wait_for(CudaStreamHandle consumer);
  // For callers that write to targets without a copy of this class. Waits until the consumer's
  // streams have done the work that earlier calls of wait_for() covered. Returns false if
  // `is_cancelled` became true. Throws DeviceFailure.
  bool wait_until_free(const std::function<bool()>& is_cancelled);

  void submit(Lane lane, Block block) override;
  // prepare_slots() pins slots before they are needed, until stop(). Call expect_prepared_slots()
  // before the thread of prepare_slots() starts: after this call, no reader pins a slot itself.
  void expect_prepared_slots() { ring_->begin_preparing(user_); }
  void prepare_slots();
  void run();
  // Makes run() return, and starts no further copy.
  void stop();

  std::uint64_t peak_pinned_bytes() const;
  // Whether the device had not finished some copies when the load ended. The targets of these
  // copies must not be freed.
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
  CopyBatch copies_;                     // used by run() only
  std::deque<Flight> in_flight_;         // oldest first; used by run() only
  TimePoint last_landed_{};              // used by run() only, for a trace
  std::vector<CudaEvent> spare_events_;  // used by run() only
  std::atomic<bool> has_abandoned_{false};
  std::atomic<std::uint64_t> waits_{0};   // calls of wait_for()
  std::atomic<std::uint64_t> waited_{0};  // the calls of wait_for() whose work is done

  std::mutex mutex_;  // guards everything below
  std::condition_variable has_work_;
  std::deque<Submitted> submitted_;
  bool has_free_slot_ = false;  // a slot came back to the ring
  bool is_stopped_ = false;
};

}  // namespace streamer
