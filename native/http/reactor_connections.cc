// The part of the reactor that handles connections: which ones it keeps, and what it does without
// one.
#include <algorithm>
#include <cmath>
#include <utility>

#include "http/reactor.h"

namespace streamer {
namespace {

// Kept by each reactor, even if the next load needs fewer.
constexpr std::size_t kConnectionsKept = 64;
constexpr double kDescriptorPollS = 0.02;  // before a block without a descriptor is tried again
constexpr double kLongWaitS = WaitingRequests::kLongWaitS;
constexpr double kTimesUsual = 4;

}  // namespace

void HttpReactor::use(MultiHandle multi) {
  // Without this option, libcurl closes most connections when the last requests of a load end.
  curl_multi_setopt(multi.get(), CURLMOPT_MAXCONNECTS,
                    static_cast<long>(std::max(transfers_.size(), kConnectionsKept)));
  const std::lock_guard lock(multi_mutex_);
  multi_.swap(multi);
}

// During an outage, idle connections may take the place of another reactor's probe, if the server
// limits connections. Also, a request that waits at the server may wait until one of them is
// closed.
void HttpReactor::close_idle_connections() {
  if (!may_have_idle_ || !active_.empty()) return;
  if (!server_->outage() && !server_->waiting->are_some(Clock::now())) return;
  may_have_idle_ = false;
  connections_ = 0;
  use(new_multi());
}

// Some servers have one process for each connection. A connection too many is not served until
// another one is closed, and ours stay open as long as the load. A request on an unserved
// connection is cancelled and sent again on a served one, by this reactor or by another. For a
// while, this reactor then uses only as many connections as are served. The limit for the wait
// doubles each time, because responses for some objects are slow to begin.
void HttpReactor::abandon_unserved_requests(TimePoint now) {
  std::vector<HttpTransfer*> unserved;
  for (const auto& [transfer, flight] : active_) {
    if (!waits_unserved(*transfer, flight, now)) continue;
    Endpoint& endpoint = *transfer->target()->endpoint;
    endpoint.waiting->note(now);
    KeptConnections::of_process().close(endpoint);
    const double limit_s = std::ldexp(kLongWaitS, transfer->block().times_unserved);
    const bool may_wait = seconds_between(flight.started, now) < limit_s;
    if (!may_wait && is_another_served(*transfer, flight)) unserved.push_back(transfer);
  }
  if (unserved.empty()) return;
  for (HttpTransfer* transfer : unserved) abandon_unserved(*transfer, now);
  window_.shrink(static_cast<unsigned>(connections_), now);
  if (connections_ == 0) end_if_others_remain();
}

// Whether the request has waited too long without any response on a new connection.
bool HttpReactor::waits_unserved(const HttpTransfer& transfer, const Flight& flight,
                                 TimePoint now) {
  const bool has_duplicate = flight.partner != nullptr && !flight.hedge;
  if (has_duplicate) return false;  // the duplicate is given up first
  const double waited_s = seconds_between(flight.started, now);
  if (waited_s < kLongWaitS || !transfer.was_silent_on_new_connection()) return false;
  return waited_s > transfer.target()->endpoint->slow_after_s().value_or(0) * kTimesUsual;
}

// Whether the server serves other connections: one of ours is idle, or an older connection answered
// a request that was sent after this one, or shortly before.
bool HttpReactor::is_another_served(const HttpTransfer& transfer, const Flight& flight) const {
  return connections_ > active_.size() ||
         transfer.target()->endpoint->answered_again.value() > after(flight.started, -kLongWaitS);
}

void HttpReactor::abandon_unserved(HttpTransfer& transfer, TimePoint now) {
  Flight flight = cancel(transfer);
  transfer.target()->endpoint->addresses->record_silence(transfer.address(), now);
  if (flight.hedge) return settle_duplicate(std::move(flight), false);
  Block block = transfer.take_block();
  block.prefers_open_connection = true;
  ++block.times_unserved;
  put_back(std::move(block), now);
}

// Returns the block to the queue, for this reactor or another. No attempt is counted, because no
// server handled the request.
void HttpReactor::put_back(Block block, TimePoint due) {
  --block.attempts;
  scheduler_.requeue(Lane::kHttp, std::move(block), due);
}

void HttpReactor::end_if_others_remain() {
  is_ending_ = is_ending_ || counters_.reactors.leave_to_others();
}

// Returns the block to the queue without counting an attempt, because it was never sent. This
// reactor then limits itself to its open connections. If it has none, it ends and leaves the block
// to others. Returns false if no reactor has a connection.
bool HttpReactor::wait_for_descriptor(Block& block) {
  if (active_.empty()) {
    end_if_others_remain();
    if (!is_ending_) return false;
  }
  window_.limit(static_cast<unsigned>(active_.size()));
  put_back(std::move(block), after(Clock::now(), kDescriptorPollS));
  return true;
}

}  // namespace streamer
