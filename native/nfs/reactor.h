// One thread with its own connections to NFS servers, and many reads in flight on each.
//
// The thread takes blocks from the NFS lane while it has room, and drives all connections at once.
// The Endpoint of a server decides when a request may be sent, for example during an outage. Only
// wake() may be called from another thread. A build without libnfs has this class, too, but its
// constructor throws.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "net/retry.h"
#include "net/timeouts.h"
#include "nfs/object.h"
#include "schedule/block_retries.h"
#include "schedule/scheduler.h"

namespace streamer {

class NfsMount;
class NfsTransfer;

class NfsReactor {
 public:
  // `objects` is indexed by source, and holds null for sources that are not read over NFS.
  NfsReactor(Scheduler& scheduler, const std::vector<std::unique_ptr<NfsObject>>& objects,
             const Timeouts& timeouts, const RetryOptions& retry);
  ~NfsReactor();
  NfsReactor(const NfsReactor&) = delete;
  NfsReactor& operator=(const NfsReactor&) = delete;

  // Runs until the lane has no more work or everything is stopped. Called once, on the reactor's
  // thread.
  void run();

  // Makes run() check the queue again. May be called from any thread while this object exists.
  void wake();

 private:
  void start_blocks();
  void start(Block block, TimePoint now);
  NfsMount& mount_for(const NfsObject& object);
  void wait();
  void collect();
  void settle(NfsTransfer& transfer, std::optional<ReadError> error, bool was_given_up);
  int poll_timeout_ms() const;

  Scheduler& scheduler_;
  const std::vector<std::unique_ptr<NfsObject>>& objects_;
  const Timeouts timeouts_;
  const RetryOptions retry_;
  const BlockRetries retries_;
  const int wake_descriptor_;
  std::map<std::string, std::unique_ptr<NfsMount>> mounts_;
  unsigned mounts_made_ = 0;
  std::uint64_t in_flight_bytes_ = 0;
  std::optional<TimePoint> retry_at_;
  bool is_lane_finished_ = false;
};

}  // namespace streamer
