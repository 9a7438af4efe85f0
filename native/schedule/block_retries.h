// What every reader that asks a server does with a block that failed: it is tried again when its
// own time or its server's has come, or it ends the load.
//
// Thread-safe.
#pragma once

#include <optional>

#include "net/endpoint.h"
#include "net/retry.h"
#include "schedule/scheduler.h"

namespace streamer {

class BlockRetries {
 public:
  BlockRetries(Scheduler& scheduler, Lane lane, const RetryOptions& options)
      : scheduler_(scheduler), lane_(lane), options_(options) {}

  // For the scheduler's Admission: a block whose time is up is handed out, to be given up.
  std::optional<TimePoint> closed_until(Endpoint& endpoint, TimePoint first_started,
                                        TimePoint now) const;

  // Whether the block's time ended while it waited. Then the load has failed with it.
  bool give_up_overdue(const Block& block, Endpoint& endpoint, TimePoint now) const;

  // After a failure; `is_of_outage` as the endpoint says. What belongs to an outage costs the block
  // no attempt, and it waits for the server instead of a time of its own. False when the load has
  // failed with it.
  bool try_again(Block block, ReadError error, Endpoint& endpoint, bool is_of_outage) const;
  // Fails the load. Its error also tells of the server's outage, or of the first failure.
  void give_up(const Block& block, ReadError error, Endpoint& endpoint) const;

 private:
  bool is_overdue(TimePoint first_started, TimePoint now) const;

  Scheduler& scheduler_;
  const Lane lane_;
  const RetryOptions options_;
};

}  // namespace streamer
