// What the Python threads of one load are given to read, server by server.
//
// A source whose file system says "try again" is treated as an HTTP server is: its blocks are tried
// again, and while it fails as a whole it is asked by one thread at a time, after pauses.
//
// Thread-safe.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "net/endpoint.h"
#include "schedule/block_retries.h"
#include "schedule/scheduler.h"

namespace streamer {

class PythonLoans {
 public:
  // `endpoints` by source. All must outlive the lane.
  PythonLoans(Scheduler& scheduler, const std::vector<std::shared_ptr<Endpoint>>& endpoints,
              const RetryOptions& retry)
      : scheduler_(scheduler), endpoints_(endpoints), retries_(scheduler, Lane::kPython, retry) {}

  // A block that is read. Its memory stays until end_loan().
  struct Loan {
    Block block;
    OutageTicket ticket;
    TimePoint started;
  };
  // Waits for a block; nothing when there is none any more.
  std::optional<Loan> lend();
  void end_loan() { scheduler_.end_loan(); }

  // What became of it, once. Its bytes are all there:
  void finish(Loan loan);
  // It may be there another time:
  void try_again(Loan loan, ReadError error);
  // It will not:
  void fail(const Loan& loan, ReadError error);

 private:
  Endpoint& endpoint_of(const Block& block) const { return *endpoints_[block.source]; }

  Scheduler& scheduler_;
  const std::vector<std::shared_ptr<Endpoint>>& endpoints_;
  const BlockRetries retries_;
};

}  // namespace streamer
