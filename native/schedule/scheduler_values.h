// What the scheduler takes and gives, as values.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/read_error.h"
#include "plan/lane.h"
#include "plan/plan.h"
#include "schedule/block_cutter.h"
#include "schedule/bound_times.h"

namespace streamer {

// Called before a block is handed out, under the scheduler's lock. Returns nothing if the block may
// go now, else the time to ask again. `first_started` is the block's first attempt, if any.
using Admission =
    std::function<std::optional<TimePoint>(std::uint32_t source, TimePoint first_started)>;

struct SchedulerOptions {
  std::array<std::uint64_t, kLaneCount> block_bytes{};
  // For the HTTP lane: returns how much to request of an object now, at most `block_bytes`. Empty
  // if the size does not follow the server. Called under the scheduler's lock.
  BlockCutter::BlockBytes http_block_bytes = {};
  std::uint64_t memory_limit_bytes = 0;
  // The limit until set_memory_limit() is called. 0 means `memory_limit_bytes`.
  std::uint64_t first_memory_limit_bytes = 0;
  std::uint64_t max_bytes_per_second = 0;  // of all lanes together; 0: no limit
  bool in_item_order = false;              // deliver in item order instead of completion order
  // By source: a number that all objects of one server share, so that an outage of one server does
  // not delay objects of others. Empty if all objects have the same server.
  std::vector<std::uint32_t> server_of_source = {};
};

// The result for a reader that must not block.
struct TakeResult {
  std::optional<Block> block;
  bool is_finished = false;  // the lane needs nothing more, or the load was stopped
  // When to look again: the next retry is due, or its server can be asked again.
  std::optional<TimePoint> retry_at;
  bool is_trim_due = false;  // memory was mapped for the block, but none was evicted for it yet
  bool has_pinned = false;   // the slot of the block was pinned, which took milliseconds
};

// The result of wait() for the consumer.
struct Delivery {
  std::vector<std::uint32_t> items;        // finished items, which the consumer may take
  std::vector<std::uint32_t> to_refresh;   // objects whose credentials must be renewed
  std::vector<std::uint32_t> to_allocate;  // items that need memory on their device: provide()
  std::optional<ReadError> error;
  bool is_finished = false;  // every item was delivered, or the session was stopped
};

struct SchedulerStats {
  std::uint64_t blocks = 0;
  std::uint64_t retries = 0;
  std::uint64_t rereads = 0;          // items that were read again after a wrong digest
  std::uint64_t cached_bytes = 0;     // bytes of items from a cache of this machine
  std::uint64_t cache_failures = 0;   // items that were damaged in a cache, of any machine
  std::uint64_t bytes_landed = 0;     // bytes of finished blocks, including dropped gaps
  std::uint64_t gpudirect_bytes = 0;  // bytes of blocks that were read straight into devices
  std::uint64_t bytes_delivered = 0;
  std::uint64_t items_delivered = 0;
  std::uint64_t peak_held_bytes = 0;
  BoundTimes::Seconds bound_s{};  // see bound_times.h
};

}  // namespace streamer
