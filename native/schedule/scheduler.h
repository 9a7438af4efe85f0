// Hands out blocks to readers, counts the bytes that landed, and delivers finished items to the one
// consumer.
//
// Contract
//  - Each lane (files, HTTP, Python, NFS) has one queue over all blocks of all objects. Blocks are
//    cut on demand, in item order. A block that must be tried again returns to its queue.
//  - With several devices, the next block is for the device with the fewest blocks in flight,
//    unless items are delivered in item order. A device that waits does not delay others.
//  - An item is delivered exactly once, when its last byte landed.
//  - Items get memory by the rules of item_memory.h: within the limit. If the system has no memory,
//    an item waits as long as some may be freed.
//  - Digests that the plan asks for are computed by finish(), on the reader's thread. An item with
//    a wrong digest is read once more before it is delivered.
//  - An item that a cache holds is read from there; if it is damaged, from its object.
//  - A block for a device is handed out with a free slot of pinned memory. After it is read, it
//    goes to the device's sink, and its bytes count as landed when the sink reports this. A block
//    that waits for its retry keeps its slot only if the slot holds received bytes. A block that
//    waits for the consumer never keeps its slot, so every slot is returned without the consumer.
//    Blocks that are read straight into a device's memory have no slot, and land at once.
//  - The first error stops everything. The consumer gets this error, and no item after it.
//
// Thread-safe. Every wait ends on stop().
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "base/clock.h"
#include "base/read_error.h"
#include "base/trace_log.h"
#include "plan/lane.h"
#include "plan/plan.h"
#include "schedule/block_cutter.h"
#include "schedule/block_tap.h"
#include "schedule/bound_times.h"
#include "schedule/cached_items.h"
#include "schedule/delivery_queue.h"
#include "schedule/device_slots.h"
#include "schedule/digest_ledger.h"
#include "schedule/item_memory.h"
#include "schedule/lane_readers.h"
#include "schedule/rate_limit.h"
#include "schedule/scheduler_values.h"
#include "schedule/seal_ledger.h"

namespace streamer {

class Scheduler {
 public:
  // `lane_of_source[s]` is the lane that reads object s. The plan must have been checked.
  Scheduler(Plan plan, const std::vector<Lane>& lane_of_source, const SchedulerOptions& options);
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Call before the first block is taken. `sink` must outlive the last block.
  void add_device(std::int32_t device, DeviceSlots lane);

  // Sets whether blocks of the source that are for a device are handed out without a slot from now
  // on, to be read straight into their targets. Ignored with digests, which need the bytes on the
  // host.
  void set_gpudirect(std::uint32_t source, bool is_gpudirect);

  // Sets the observer of all blocks, before the first is taken; it must outlive the last.
  void set_tap(BlockTap* tap) { tap_ = tap; }
  void set_trace(TraceLog* trace) { trace_ = trace; }
  TraceLog* trace() const { return trace_; }

  // --- readers ---
  // Waits for a block. Returns none if the lane is finished or the load was stopped.
  std::optional<Block> take(Lane lane);
  // Like take(), for a reader that is not joined before release(). It may write the block's memory
  // until end_loan(), whatever happens to the block. Each block needs one end_loan().
  std::optional<Block> lend(Lane lane, const Admission& admission = {});
  void end_loan();
  // Never waits. A reactor that gets no block is woken through its waker when that may change.
  TakeResult try_take(Lane lane, TimePoint now, const Admission& admission = {});
  void finish(Lane lane, Block block);
  // Records that a block of a cache could not be read. Another machine is then not asked again.
  void finish_damaged(Lane lane, Block block);
  const CachedItems& cached() const { return cached_; }  // holds() and is_lost() need no lock
  // Queues a block that failed and is worth another attempt, from `due` on.
  void retry_at(Lane lane, Block block, TimePoint due);
  // Queues a block that was not tried, because it waits for new credentials. This is not a retry.
  void requeue(Lane lane, Block block, TimePoint due);
  // Like requeue(), for a block that waits until the consumer renews credentials, whenever that is.
  void requeue_until_renewed(Lane lane, Block block, TimePoint due);
  void fail(ReadError error);
  void ask_refresh(std::uint32_t source);
  // `waker` is called from any thread, without the scheduler's lock, whenever try_take() of that
  // lane may return something else.
  void add_waker(Lane lane, std::function<void()> waker);
  // Call this after the readers of the lanes have ended.
  void remove_wakers();

  // --- the guide of a load with peers, on any thread ---
  // Hands out held-back items, each to be read from the given source. Others are ignored.
  void release(std::vector<ReleasedItem> items);
  // Returns the peers' sources that are not read any more, because a read of their server failed.
  std::vector<std::uint32_t> lost_peers();
  // Lets the server of a lost source be read again, unless it gave wrong bytes.
  void win_back(std::uint32_t source);

  // --- the sinks of devices ---
  // Records that the block's bytes are on its device, and that its slot was given back.
  void land(Lane lane, const Block& block);
  // Wakes readers, because a slot may be free.
  void wake_starved();

  // --- the consumer ---
  // Waits for finished items of at least `enough_bytes`. Returns fewer if readers lack memory, if
  // nothing more will come, or after the time-out.
  Delivery wait(double timeout_s, std::uint64_t enough_bytes = 0);
  // Sets a new limit, at most that of the options. Memory that is held stays.
  void set_memory_limit(std::uint64_t limit_bytes);
  // Returns what wait() would return as `to_allocate`; nothing after an error.
  std::vector<std::uint32_t> next_to_allocate();
  // Sets the memory of items of `to_allocate`, each on its device. The memory must stay valid until
  // its item is taken or the session is closed. Throws std::invalid_argument for unrequested items.
  void provide(const std::vector<std::uint32_t>& items, const std::vector<std::byte*>& targets);
  // Returns the memory of a delivered item; empty if the caller provided the target.
  Memory take_item(std::uint32_t item) { return std::move(take_items({item}).front()); }
  std::vector<Memory> take_items(const std::vector<std::uint32_t>& items);
  // Returns the digests of a delivered item, if the plan asks for them.
  std::vector<Piece> digest_pieces(std::uint32_t item) { return ledger_.pieces(item); }
  Hash hash(std::uint32_t item) { return ledger_.hash(item); }

  void stop();
  // Frees the memory of items that were not taken. Call this after stop(), when all readers of the
  // engine have ended. If a loan has not ended, all memory stays until it ends.
  void release();
  bool is_stopped() const { return is_stopped_; }
  SchedulerStats stats();
  // Returns the bytes of finished items that came from other machines' caches, by source.
  std::map<std::uint32_t, std::uint64_t> peer_bytes();
  // Returns the bytes that came, by source.
  std::vector<std::uint64_t> landed_bytes();

 private:
  struct LaneQueue {
    std::list<BlockCutter> cutters;  // for each server and device, and for each release
    std::multimap<TimePoint, Block> retries;
    std::uint32_t in_flight = 0;
    std::uint32_t expected = 0;  // items in a cache that may turn out to be damaged
    LaneReaders readers;

    bool is_cut() const {
      return std::all_of(cutters.begin(), cutters.end(),
                         [](const BlockCutter& cutter) { return cutter.is_exhausted(); });
    }
    bool is_finished() const {
      return in_flight == 0 && retries.empty() && expected == 0 && is_cut();
    }
  };
  // Holds the lock for a block of code. Afterwards, wakes the threads that wait for the new state.
  class Locked {
   public:
    explicit Locked(Scheduler& scheduler) : scheduler_(scheduler), lock_(scheduler.mutex_) {
      scheduler.spend_time(Clock::now());
    }
    ~Locked() { scheduler_.unlock_and_wake(lock_); }
    Locked(const Locked&) = delete;
    Locked& operator=(const Locked&) = delete;

   private:
    Scheduler& scheduler_;
    std::unique_lock<std::mutex> lock_;
  };
  void unlock_and_wake(std::unique_lock<std::mutex>& lock);
  std::uint32_t server_of(std::uint32_t source) const;
  void count_in_flight(const Block& block, int change);
  void check_bytes(Block& block);
  void spend_time(TimePoint now);
  BlockCutter::BlockBytes block_bytes_of(std::size_t lane) const;
  BlockCutter::BlockBytes wanted_block_bytes_of(std::size_t lane) const;
  // One search for a block, and the reasons why none was found.
  struct Search {
    const Admission& admission;
    TimePoint now;
    std::optional<Block>& found;                 // in place: a block is large, and the lock is held
    std::optional<TimePoint> again_at = {};      // when to ask the first skipped server again
    bool may_map = false;                        // may map memory although the lock is held
    std::set<std::int32_t> short_of_slots = {};  // devices without a free slot for their next block

    bool may_take(std::uint32_t source, TimePoint first_started = {});
  };

  TakeResult wait_for_block(Lane lane, bool is_loan, const Admission& admission);
  TakeResult try_take_locked(LaneQueue& lane, TimePoint now, const Admission& admission,
                             bool may_map);
  TakeResult take_prepared(std::unique_lock<std::mutex>& lock, LaneQueue& lane, TimePoint now,
                           const Admission& admission);
  // Does the rest of the work for a taken block, without the lock.
  TakeResult after_lock(TakeResult taken);
  bool take_due(LaneQueue& lane, Search& search);
  bool cut_next(LaneQueue& lane, Search& search);
  BlockCutter* most_urgent(LaneQueue& lane, Search& search,
                           const std::set<const BlockCutter*>& tried);
  bool cut_from(BlockCutter& cutter, LaneQueue& lane, Search& search);
  bool needs_slot(std::int32_t device, std::uint32_t source) const;
  bool try_give_slot(Block& block, Search& search);
  void count_landed(Lane which, const Block& block);
  void count_done(Lane which, const Block& block);
  void ask_for_memory();
  void limit_memory(std::uint64_t limit_bytes);
  void settle(Lane lane, std::uint32_t item);
  using Queue = std::tuple<std::size_t, std::uint32_t, std::int32_t>;  // lane, server, device
  Queue queue_for(const Span& span) const;
  std::set<Lane> lanes_for(std::uint32_t held_back) const;
  void settle_cached(std::uint32_t item, std::uint32_t origin);
  void forget_in_cache(std::uint32_t item);
  Verdict judge(std::uint32_t item);
  void read_again(Lane lane, std::uint32_t item);
  void complete(std::uint32_t item);
  bool has_enough() const;
  void fail_locked(ReadError error);
  void stop_locked();
  void release_locked();
  void queue_again(LaneQueue& lane, Block block, TimePoint due);
  void wake_starved_locked();
  LaneQueue& queue_of(Lane lane) { return lanes_[static_cast<std::size_t>(lane)]; }

  const SchedulerOptions options_;
  DigestLedger ledger_;  // has its own lock, which is taken while ours is held
  SealLedger seals_;     // has its own lock, too
  BlockTap* tap_ = nullptr;
  TraceLog* trace_ = nullptr;

  std::mutex mutex_;  // guards everything below
  std::condition_variable has_delivery_;
  bool is_consumer_to_be_woken_ = false;
  Plan plan_;
  const std::vector<Lane> lane_of_source_;
  CachedItems cached_;                        // add() and holds() need no lock
  std::vector<std::uint64_t> missing_bytes_;  // by item
  DeliveryQueue queue_;
  std::uint64_t finished_bytes_ = 0;  // bytes of finished items that were not delivered yet
  std::uint64_t enough_bytes_ = 0;    // what the consumer passed to wait()
  ItemMemory memory_;
  std::optional<Item> unprepared_;  // the item whose memory a search lacked; it is prepared next
  bool is_preparing_ = false;       // one reader prepares memory, and the others wait
  RateLimit rate_;
  std::array<LaneQueue, kLaneCount> lanes_;
  std::vector<std::uint32_t> to_refresh_;
  std::map<std::int32_t, DeviceSlots> devices_;
  std::map<std::int32_t, int> in_flight_;      // by device: blocks in flight, of all lanes
  std::map<std::uint32_t, int> in_flight_at_;  // the same, by server
  std::set<std::uint32_t> gpudirect_sources_;
  std::optional<ReadError> error_;
  std::atomic<bool> is_stopped_ = false;  // written under the lock
  std::uint32_t loans_ = 0;
  bool is_release_asked_ = false;
  BoundTimes bounds_;
  SchedulerStats stats_;
  std::map<std::uint32_t, std::uint64_t> peer_bytes_;  // by source
  std::vector<std::uint64_t> landed_bytes_;            // by source
  std::set<std::uint32_t> held_back_;                  // items
};

}  // namespace streamer
