// Hands blocks to readers, counts what landed, and hands finished items to the one consumer.
//
// Contract
//  - One queue per lane (files, HTTP, Python, NFS) over all blocks of all objects, cut on demand in
//    item order; a block that must be tried again comes back to the same queue.
//  - Of several devices, the next block is for the one with the fewest blocks on their way, unless
//    items are delivered in their order; one that has to wait keeps no other waiting.
//  - An item is delivered exactly once, when its last byte landed.
//  - Memory is given to items as item_memory.h says: within the limit, and where the system has
//    none, an item waits while some may come back.
//  - Where the plan wants digests, they are computed by finish(), on the reader's thread; an item
//    with another than the expected one is read once more before it is delivered.
//  - An item that a cache of this machine holds is read from there. If it is damaged, it is read
//    from its object; until then the lane of that object has not finished.
//  - A block for a device is handed out with a slot of pinned memory, when one is free, and goes to
//    the device's sink when it is read; its bytes count as landed once the sink says so. A block
//    that waits for its retry keeps its slot only while that holds received bytes, and never while
//    it waits for the consumer; so every slot comes back by itself.
//    Blocks of sources that are read straight into a device's memory have no slot, and land at
//    once.
//  - The first error stops everything and is what the consumer gets; nothing is delivered after it.
//
// Thread-safe. Every wait ends on stop().
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "base/clock.h"
#include "base/read_error.h"
#include "plan/lane.h"
#include "plan/plan.h"
#include "schedule/block_cutter.h"
#include "schedule/block_tap.h"
#include "schedule/cached_items.h"
#include "schedule/delivery_queue.h"
#include "schedule/device_slots.h"
#include "schedule/digest_ledger.h"
#include "schedule/item_memory.h"
#include "schedule/lane_readers.h"
#include "schedule/rate_limit.h"
#include "schedule/seal_ledger.h"

namespace streamer {

// Asked before a block is handed out, under the scheduler's lock: nothing where it may go now, else
// when to ask again. Of a block that was tried before, the time of its first attempt; else none.
using Admission =
    std::function<std::optional<TimePoint>(std::uint32_t source, TimePoint first_started)>;

struct SchedulerOptions {
  std::array<std::uint64_t, kLaneCount> block_bytes{};
  // Of the HTTP lane, where it follows the server: what is asked for an object at this moment, at
  // most `block_bytes`. Called under the scheduler's lock.
  BlockCutter::BlockBytes http_block_bytes = {};
  std::uint64_t memory_limit_bytes = 0;
  // Until set_memory_limit() is called; 0: `memory_limit_bytes`.
  std::uint64_t first_memory_limit_bytes = 0;
  std::uint64_t max_bytes_per_second = 0;  // of all lanes together; 0: no limit
  bool in_item_order = false;              // deliver in item order instead of completion order
  // By source: objects of one server have the same number, so that one server's outage keeps no
  // other waiting. Empty: all the same.
  std::vector<std::uint32_t> server_of_source = {};
};

// What a reader that must not block finds.
struct TakeResult {
  std::optional<Block> block;
  bool is_finished = false;  // the lane needs nothing more, or everything was stopped
  // When there may be one: the next retry is due, or its server is to be asked again.
  std::optional<TimePoint> retry_at;
  bool is_trim_due = false;  // memory was mapped for the block, and none given back for it yet
  bool has_pinned = false;   // memory for it, which took milliseconds
};

// What the consumer finds.
struct Delivery {
  std::vector<std::uint32_t> items;        // finished, to be taken
  std::vector<std::uint32_t> to_refresh;   // objects whose credentials must be renewed
  std::vector<std::uint32_t> to_allocate;  // items that need memory on their device: provide()
  std::optional<ReadError> error;
  bool is_finished = false;  // every item was delivered, or the session was stopped
};

struct SchedulerStats {
  std::uint64_t blocks = 0;
  std::uint64_t retries = 0;
  std::uint64_t rereads = 0;          // of items whose digest was wrong
  std::uint64_t cached_bytes = 0;     // of items, read from a cache
  std::uint64_t cache_failures = 0;   // items that were damaged there
  std::uint64_t bytes_landed = 0;     // of finished blocks, dropped gaps included
  std::uint64_t gpudirect_bytes = 0;  // of these, in blocks read straight into a device's memory
  std::uint64_t bytes_delivered = 0;
  std::uint64_t items_delivered = 0;
  std::uint64_t peak_held_bytes = 0;
};

class Scheduler {
 public:
  // `lane_of_source[s]` says who reads object s. The plan has been checked.
  Scheduler(Plan plan, const std::vector<Lane>& lane_of_source, const SchedulerOptions& options);
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Before anything is taken. `sink` must outlive the last block.
  void add_device(std::int32_t device, DeviceSlots lane);

  // Whether blocks of the source that are for a device are handed out from here on without a slot,
  // to be read straight into their targets. Not with digests, which need the bytes on the host.
  void set_gpudirect(std::uint32_t source, bool is_gpudirect);

  // Before anything is taken: who is shown every block. It must outlive the last one.
  void set_tap(BlockTap* tap) { tap_ = tap; }

  // --- readers ---
  // Waits for a block. Returns none if the lane is finished or the load was stopped.
  std::optional<Block> take(Lane lane);
  // As take(), for a reader that is not joined before release(): until end_loan() it may write the
  // block's memory, whatever became of the block. One loan for each block.
  std::optional<Block> lend(Lane lane, const Admission& admission = {});
  void end_loan();
  // Never waits. A reactor that gets nothing is woken through its waker when that changes.
  TakeResult try_take(Lane lane, TimePoint now, const Admission& admission = {});
  void finish(Lane lane, Block block);
  // A block of a cache's file could not be read: its items are read from their objects.
  void finish_damaged(Lane lane, Block block);
  // Whether a source is a file of a cache.
  bool is_of_cache(std::uint32_t source) const { return cached_.holds(source); }
  // The block failed and is worth another attempt, once `due`.
  void retry_at(Lane lane, Block block, TimePoint due);
  // The block was not tried: it waits for new credentials. Not a retry.
  void requeue(Lane lane, Block block, TimePoint due);
  // As requeue, of a block that waits until the consumer renewed credentials, whenever that is.
  void requeue_until_renewed(Lane lane, Block block, TimePoint due);
  void fail(ReadError error);
  void ask_refresh(std::uint32_t source);
  // `waker` is called, from any thread and without the scheduler's lock, whenever try_take of that
  // lane may answer differently.
  void add_waker(Lane lane, std::function<void()> waker);
  // After the lanes' readers are gone.
  void remove_wakers();

  // --- the sinks of devices ---
  // The block's bytes are on its device, and its slot was given back.
  void land(Lane lane, const Block& block);
  // A slot may be had.
  void wake_starved();

  // --- the consumer ---
  // Waits for finished items, of `enough_bytes` together where the consumer is in no hurry; for
  // less, once readers lack memory or nothing more will come, and after the time-out.
  Delivery wait(double timeout_s, std::uint64_t enough_bytes = 0);
  // From here on, at most `memory_limit_bytes` of the options; what is held already stays.
  void set_memory_limit(std::uint64_t limit_bytes);
  // What wait() would give as `to_allocate`; nothing after an error.
  std::vector<std::uint32_t> next_to_allocate();
  // The memory of items of `to_allocate`, each on its device; it stays until its item is taken or
  // the session is closed. Throws std::invalid_argument for what was not asked.
  void provide(const std::vector<std::uint32_t>& items, const std::vector<std::byte*>& targets);
  // Memory of a delivered item; empty where the caller gave the target.
  Memory take_item(std::uint32_t item) { return std::move(take_items({item}).front()); }
  std::vector<Memory> take_items(const std::vector<std::uint32_t>& items);
  // Of a delivered item, where the plan wants its digest.
  std::vector<Piece> digest_pieces(std::uint32_t item) { return ledger_.pieces(item); }

  void stop();
  // Gives back the memory of whatever was not taken. After stop(), when no reader of the engine's
  // own is left; a loan that has not ended keeps all of it until then.
  void release();
  bool is_stopped() const { return is_stopped_; }
  SchedulerStats stats();

 private:
  struct LaneQueue {
    std::vector<BlockCutter> cutters;  // one for each server and device
    std::multimap<TimePoint, Block> retries;
    std::uint32_t in_flight = 0;
    std::uint32_t expected = 0;  // items that a cache holds, and that may turn out to be damaged
    LaneReaders readers;

    bool is_cut() const {
      return std::all_of(cutters.begin(), cutters.end(),
                         [](const BlockCutter& cutter) { return cutter.is_exhausted(); });
    }
    bool is_finished() const {
      return in_flight == 0 && retries.empty() && expected == 0 && is_cut();
    }
  };
  // Holds the lock for a block of code, after which it wakes whom that has to say something.
  class Locked {
   public:
    explicit Locked(Scheduler& scheduler) : scheduler_(scheduler), lock_(scheduler.mutex_) {}
    ~Locked() { scheduler_.unlock_and_wake(lock_); }
    Locked(const Locked&) = delete;
    Locked& operator=(const Locked&) = delete;

   private:
    Scheduler& scheduler_;
    std::unique_lock<std::mutex> lock_;
  };
  void unlock_and_wake(std::unique_lock<std::mutex>& lock);
  BlockCutter::BlockBytes block_bytes_of(std::size_t lane) const;
  BlockCutter::BlockBytes wanted_block_bytes_of(std::size_t lane) const;
  // One look for a block, and what stood in its way.
  struct Search {
    const Admission& admission;
    TimePoint now;
    std::optional<Block>& found;             // in place: a block is long, and the lock is held
    std::optional<TimePoint> again_at = {};  // when the first server that was passed over is asked
    bool may_map = false;                    // memory, although the lock is held
    std::set<std::int32_t> short_of_slots = {};  // devices whose next block finds no pinned memory

    bool may_take(std::uint32_t source, TimePoint first_started = {});
  };

  TakeResult wait_for_block(Lane lane, bool is_loan, const Admission& admission);
  TakeResult try_take_locked(LaneQueue& lane, TimePoint now, const Admission& admission,
                             bool may_map);
  TakeResult take_prepared(std::unique_lock<std::mutex>& lock, LaneQueue& lane, TimePoint now,
                           const Admission& admission);
  // What is left to do for a block that was taken, when nobody waits for it any more.
  TakeResult after_lock(TakeResult taken);
  bool take_due(LaneQueue& lane, Search& search);
  bool cut_next(LaneQueue& lane, Search& search);
  BlockCutter* most_urgent(LaneQueue& lane, Search& search,
                           const std::set<const BlockCutter*>& tried);
  bool cut_from(BlockCutter& cutter, LaneQueue& lane, Search& search);
  bool needs_slot(std::int32_t device, std::uint32_t source) const;
  bool try_give_slot(Block& block, Search& search);
  void count_landed(Lane which, const Block& block);
  void ask_for_memory();
  void limit_memory(std::uint64_t limit_bytes);
  void settle(Lane lane, std::uint32_t item);
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
  DigestLedger ledger_;  // has a lock of its own, taken inside of ours
  SealLedger seals_;     // likewise
  BlockTap* tap_ = nullptr;

  std::mutex mutex_;  // guards everything below
  std::condition_variable has_delivery_;
  bool is_consumer_to_be_woken_ = false;
  Plan plan_;
  const std::vector<Lane> lane_of_source_;
  CachedItems cached_;                        // of which add() and holds() need no lock
  std::vector<std::uint64_t> missing_bytes_;  // by item
  DeliveryQueue queue_;
  std::uint64_t finished_bytes_ = 0;  // of items that were not delivered yet
  std::uint64_t enough_bytes_ = 0;    // as the consumer said in wait()
  ItemMemory memory_;
  std::optional<Item> unprepared_;  // the memory that a search found missing, to be prepared next
  bool is_preparing_ = false;       // one reader does; the others wait
  RateLimit rate_;
  std::array<LaneQueue, kLaneCount> lanes_;
  std::vector<std::uint32_t> to_refresh_;
  std::map<std::int32_t, DeviceSlots> devices_;
  std::map<std::int32_t, std::uint32_t> in_flight_;  // blocks, by where they go; of all lanes
  std::set<std::uint32_t> gpudirect_sources_;
  std::optional<ReadError> error_;
  std::atomic<bool> is_stopped_ = false;  // written under the lock
  std::uint32_t loans_ = 0;
  bool is_release_asked_ = false;
  SchedulerStats stats_;
};

}  // namespace streamer
