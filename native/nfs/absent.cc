// Replaces the NFS reader in a build without libnfs.
#include <stdexcept>

#include "nfs/reactor.h"

namespace streamer {

class NfsMount {};
class NfsTransfer {};

NfsReactor::NfsReactor(Scheduler& scheduler, const std::vector<std::unique_ptr<NfsObject>>& objects,
                       const Timeouts& timeouts, const RetryOptions& retry)
    : scheduler_(scheduler),
      objects_(objects),
      timeouts_(timeouts),
      retry_(retry),
      retries_(scheduler, Lane::kNfs, retry),
      wake_descriptor_(-1) {
  throw std::logic_error("this build has no NFS client");
}

NfsReactor::~NfsReactor() = default;

void NfsReactor::run() {}

void NfsReactor::wake() {}

}  // namespace streamer
