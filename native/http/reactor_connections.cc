// The part of the reactor that knows of connections: which it keeps, and what it does without one.
#include <algorithm>
#include <utility>

#include "base/descriptors.h"
#include "http/reactor.h"
#include "net/name_lookup.h"

namespace streamer {
namespace {

// In each reactor, also where the next one reads less.
constexpr std::size_t kConnectionsKept = 64;
constexpr double kDescriptorPollS = 0.02;  // before a block that found none is tried again
// A name server that answered libcurl this fast will answer us as fast; one that did not has failed
// by being slow, and would hold up every other request of this thread.
constexpr double kPromptLookupS = 0.5;

}  // namespace

void HttpReactor::use(MultiHandle multi) {
  // Unset, libcurl closes all but a few when the last requests of a load end.
  curl_multi_setopt(multi.get(), CURLMOPT_MAXCONNECTS,
                    static_cast<long>(std::max(transfers_.size(), kConnectionsKept)));
  const std::lock_guard lock(multi_mutex_);
  multi_.swap(multi);
}

// In an outage: the server may count them, and have no room for a probe of another reactor's.
void HttpReactor::leave_idle_connections() {
  if (!may_have_idle_ || !active_.empty() || !server_->outage()) return;
  may_have_idle_ = false;
  use(new_multi());
}

// Tells apart what libcurl has one word for.
void HttpReactor::refine_connect_error(ReadError& error, HttpTransfer& transfer,
                                       TimePoint now) const {
  const bool has_no_connection =
      error.code == ErrorCode::kConnect || error.code == ErrorCode::kResolve;
  if (!has_no_connection || error.http_status != 0) return;
  if (const int shortage = descriptor_shortage(); shortage != 0) {
    error.code = ErrorCode::kIo;
    error.os_error = shortage;
    error.detail = "no file descriptor is left for a connection";
    return;
  }
  const bool was_prompt = seconds_between(active_.at(&transfer).started, now) < kPromptLookupS;
  if (error.code == ErrorCode::kResolve && was_prompt && !scheduler_.is_stopped()) {
    error.code = look_up(host_of(transfer.target()->url));
  }
}

// Puts the block back without counting an attempt, as it was never sent: for this reactor, which
// keeps to the connections it has, or for the others where it has none. False when nobody has one.
bool HttpReactor::wait_for_descriptor(Block& block) {
  if (active_.empty()) {
    is_leaving_ = is_leaving_ || counters_.reactors.leave_to_others();
    if (!is_leaving_) return false;
  }
  window_.limit(static_cast<unsigned>(active_.size()));
  --block.attempts;
  scheduler_.requeue(Lane::kHttp, std::move(block), after(Clock::now(), kDescriptorPollS));
  return true;
}

}  // namespace streamer
