// The blocks that the Python threads of one load read, with the state of each block's server.
//
// A source whose file system says "try again" is treated like an HTTP server. Its blocks are tried
// again. While it fails as a whole, only one thread at a time asks it, after pauses.
//
// Thread-safe.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "net/endpoint.h"
#include "schedule/block_retries.h"
#include "schedule/scheduler.h"

namespace streamer {

class PythonLoans {
 public:
  // `endpoints` is indexed by source. All arguments must outlive this object.
  PythonLoans(Scheduler& scheduler, const std::vector<std::shared_ptr<Endpoint>>& endpoints,
              const RetryOptions& retry)
      : scheduler_(scheduler), endpoints_(endpoints), retries_(scheduler, Lane::kPython, retry) {}

  // A block that a thread reads. Its memory stays until end_loan().
  struct Loan {
    Block block;
    OutageTicket ticket;
    TimePoint started;
  };
  // Waits for a block. Returns nothing if no block is left.
  std::optional<Loan> lend();
  void end_loan() { scheduler_.end_loan(); }

  // Call one of the following three, once for each loan. All bytes are there:
  void finish(Loan loan);
  // The bytes may be available later:
  void try_again(Loan loan, ReadError error);
  // The bytes cannot be read:
  void fail(const Loan& loan, ReadError error);

 private:
  Endpoint& endpoint_of(const Block& block) const { return *endpoints_[block.source]; }
  void note(const Loan& loan, const std::string& failure);

  Scheduler& scheduler_;
  const std::vector<std::shared_ptr<Endpoint>>& endpoints_;
  const BlockRetries retries_;
};

}  // namespace streamer
