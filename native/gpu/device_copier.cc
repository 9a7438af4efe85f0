#include "gpu/device_copier.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

namespace streamer {
namespace {

// Time between two polls of the oldest copy. A copy of 8 MiB takes 150 us over PCIe 5, and the ring
// holds many blocks of that size.
constexpr double kPollS = 50e-6;
// A copy takes milliseconds, but it may wait for kernels of the consumer.
constexpr double kCopyTimeoutS = 300;
// A cancelled load must end within a second. This part of the second is for copies under way.
constexpr double kDrainS = 0.8;
// The device is polled at least this often. The drain time may have passed only because the process
// itself was stopped, for example with its container.
constexpr int kMinDrainPolls = 100;

}  // namespace

DeviceCopier::DeviceCopier(Scheduler& scheduler, std::shared_ptr<PinnedRing> ring,
                           std::uint64_t pinned_bytes, std::size_t slot_bytes,
                           std::uint64_t first_slots)
    : scheduler_(scheduler), ring_(std::move(ring)), device_(ring_->device()), copies_(*device_) {
  const CurrentContext current(*device_);
  stream_.emplace(*device_);
  user_->limit_bytes = pinned_bytes;
  user_->slot_bytes = slot_bytes;
  user_->first_bytes = first_slots * slot_bytes;
  user_->wake = [this] { note_free_slot(); };
  ring_->join(user_);
}

DeviceCopier::~DeviceCopier() {
  ring_->leave(user_);
  if (device_->driver().is_forked()) return;
  const RelaxedCapture relaxed(device_->driver());
  spare_events_.clear();
  in_flight_.clear();
  stream_.reset();
}

DeviceSlots DeviceCopier::lane() { return {ring_, user_, this}; }

void DeviceCopier::wait_for(CudaStreamHandle consumer) {
  const CurrentContext current(*device_);
  CudaEvent event(*device_);  // may be destroyed as soon as the wait is enqueued
  event.record(consumer);
  const CudaDriver& driver = device_->driver();
  driver.check(driver.stream_wait_event(stream_->handle(), event.handle(), 0),
               "waiting for the consumer's stream on " + device_->label());
  ++waits_;
}

bool DeviceCopier::wait_until_free(const std::function<bool()>& is_cancelled) {
  const std::uint64_t wanted = waits_;
  if (waited_ >= wanted) return true;
  const CurrentContext current(*device_);
  CudaEvent event(*device_);
  // Fires after the waits, and after the copies that were started by now.
  event.record(stream_->handle());
  while (!event.has_fired()) {
    if (is_cancelled()) return false;
    std::this_thread::sleep_for(Seconds(kPollS));
  }
  std::uint64_t done = waited_;
  while (done < wanted && !waited_.compare_exchange_weak(done, wanted)) {
  }
  return true;
}

void DeviceCopier::submit(Lane lane, Block block) {
  const std::lock_guard lock(mutex_);
  if (is_stopped_) return;  // the load has ended; the slot goes back to the ring
  submitted_.push_back({lane, std::move(block)});
  has_work_.notify_one();
}

void DeviceCopier::note_free_slot() {
  const std::lock_guard lock(mutex_);
  has_free_slot_ = true;
  has_work_.notify_one();
}

void DeviceCopier::prepare_slots() {
  try {
    ring_->prepare(user_);
  } catch (const DeviceFailure& failure) {
    scheduler_.fail(failure.error());
  }
}

void DeviceCopier::stop() {
  ring_->end_preparing(user_);
  const std::lock_guard lock(mutex_);
  is_stopped_ = true;
  has_work_.notify_one();
}

void DeviceCopier::run() {
  try {
    const CurrentContext current(*device_);
    try {
      copy_until_stopped();
    } catch (const DeviceFailure& failure) {
      scheduler_.fail(failure.error());
    } catch (...) {  // most likely out of memory, while copies under way still read and write
      drain();
      throw;
    }
    drain();
    spare_events_.clear();
  } catch (const DeviceFailure& failure) {
    scheduler_.fail(failure.error());
  }
  stop();
  std::deque<Submitted> dropped;  // destroyed after the lock is released, which returns their slots
  const std::lock_guard lock(mutex_);
  dropped.swap(submitted_);
}

void DeviceCopier::copy_until_stopped() {
  std::deque<Submitted> work;
  while (wait_for_work(work)) {
    for (; !work.empty(); work.pop_front()) start(std::move(work.front()));
    land_finished();
  }
}

// Returns false once the copier is stopped. If copies are under way, waits only a moment.
bool DeviceCopier::wait_for_work(std::deque<Submitted>& work) {
  bool has_free_slot = false;
  {
    std::unique_lock lock(mutex_);
    const auto has_news = [this] { return is_stopped_ || has_free_slot_ || !submitted_.empty(); };
    if (in_flight_.empty()) {
      has_work_.wait(lock, has_news);
    } else {
      has_work_.wait_for(lock, Seconds(kPollS), has_news);
    }
    if (is_stopped_) return false;
    work.swap(submitted_);
    has_free_slot = std::exchange(has_free_slot_, false);
  }
  if (has_free_slot) scheduler_.wake_starved();
  return true;
}

void DeviceCopier::start(Submitted submitted) {
  CudaEvent event = take_event();
  in_flight_.push_back(
      {submitted.lane, std::move(submitted.block), std::move(event), Clock::now()});
  const Block& flying = in_flight_.back().block;
  const std::byte* from = flying.in_slot->target;
  for (const Segment& segment : flying.destinations) {
    if (segment.target != nullptr) copies_.add(from, segment.target, segment.size);
    from += segment.size;
  }
  copies_.start(stream_->handle());
  in_flight_.back().event.record(stream_->handle());
}

void DeviceCopier::land_finished() {
  while (!in_flight_.empty() && in_flight_.front().event.has_fired()) {
    Flight flight = std::move(in_flight_.front());
    in_flight_.pop_front();
    spare_events_.push_back(std::move(flight.event));
    if (TraceLog* const trace = scheduler_.trace()) {  // copies run one after the other
      trace->add({.category = "copy",
                  .source = flight.block.source,
                  .offset = flight.block.begin,
                  .bytes = flight.block.size()},
                 std::max(flight.started, last_landed_));
      last_landed_ = Clock::now();
    }
    flight.block.leave_slot();
    scheduler_.land(flight.lane, flight.block);
  }
  if (in_flight_.empty()) return;
  if (seconds_between(in_flight_.front().started, Clock::now()) > kCopyTimeoutS) {
    throw device_failure(device_->label() + " did not finish a copy within " +
                             std::to_string(static_cast<int>(kCopyTimeoutS)) + " s",
                         "CUDA_ERROR_NOT_READY");
  }
}

// Waits for the copies under way, because they read slots and write the consumer's memory. If the
// device reports an error, the copies have ended.
void DeviceCopier::drain() {
  if (in_flight_.empty()) return;
  const TimePoint deadline = after(Clock::now(), kDrainS);
  const auto is_busy = [this] {
    return device_->driver().stream_query(stream_->handle()) == kCudaNotReady;
  };
  for (int polls = 0; is_busy() && (Clock::now() < deadline || polls < kMinDrainPolls); ++polls) {
    std::this_thread::sleep_for(Seconds(kPollS));
  }
  if (is_busy()) {
    has_abandoned_ = true;
    for (Flight& flight : in_flight_) flight.block.slot->abandon();
  }
  in_flight_.clear();
}

CudaEvent DeviceCopier::take_event() {
  if (spare_events_.empty()) return CudaEvent(*device_);
  CudaEvent event = std::move(spare_events_.back());
  spare_events_.pop_back();
  return event;
}

std::uint64_t DeviceCopier::peak_pinned_bytes() const { return ring_->peak_bytes(*user_); }

}  // namespace streamer
