// What a reader of a server does with a block that failed. The block is tried again when its pause
// or the outage of its server is over, or the failure ends the load.
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

  // For the scheduler's Admission. A block whose deadline has passed is handed out, so that it can
  // fail.
  std::optional<TimePoint> closed_until(Endpoint& endpoint, TimePoint first_started,
                                        TimePoint now) const;

  // Fails the load if the deadline of the block passed while it waited. Returns whether it did.
  bool give_up_overdue(const Block& block, Endpoint& endpoint, TimePoint now) const;

  // Decides on a block that failed. `is_of_outage` is what the endpoint returned. A failure in an
  // outage does not count as an attempt of the block, which then waits for the server and has no
  // pause of its own. Returns false if the load has failed.
  bool try_again(Block block, ReadError error, Endpoint& endpoint, bool is_of_outage) const;
  // Fails the load. The error also describes the outage of the server, or the first failure.
  void give_up(const Block& block, ReadError error, Endpoint& endpoint) const;

 private:
  bool is_overdue(TimePoint first_started, TimePoint now) const;

  Scheduler& scheduler_;
  const Lane lane_;
  const RetryOptions options_;
};

}  // namespace streamer
