// The part of the reactor that knows of connections: which it keeps, and what it does without one.
#include <algorithm>
#include <cmath>
#include <utility>

#include "http/reactor.h"

namespace streamer {
namespace {

// In each reactor, also where the next one reads less.
constexpr std::size_t kConnectionsKept = 64;
constexpr double kDescriptorPollS = 0.02;  // before a block that found none is tried again
constexpr double kPatienceS = WaitingRequests::kPatienceS;
constexpr double kTimesUsual = 4;

}  // namespace

void HttpReactor::use(MultiHandle multi) {
  // Unset, libcurl closes all but a few when the last requests of a load end.
  curl_multi_setopt(multi.get(), CURLMOPT_MAXCONNECTS,
                    static_cast<long>(std::max(transfers_.size(), kConnectionsKept)));
  const std::lock_guard lock(multi_mutex_);
  multi_.swap(multi);
}

// In an outage, the server may count them, and have no room for a probe of another reactor's. And
// what waits at the server, there or here, may wait for one of them to be closed.
void HttpReactor::leave_idle_connections() {
  if (!may_have_idle_ || !active_.empty()) return;
  if (!server_->outage() && !server_->waiting->are_some(Clock::now())) return;
  may_have_idle_ = false;
  connections_ = 0;
  use(new_multi());
}

// Some servers have one process for each connection. A connection too many waits until another is
// closed, and ours stay open as long as the load. What was asked for on such a one is asked for
// again on one that is served, by this reactor or by another; and for a while, this reactor uses no
// more than those that are served. Each time it may wait twice as long as before: of some objects
// the answer takes longer to begin.
void HttpReactor::leave_unserved_connections(TimePoint now) {
  std::vector<HttpTransfer*> unserved;
  for (const auto& [transfer, flight] : active_) {
    if (!waits_unserved(*transfer, flight, now)) continue;
    Endpoint& endpoint = *transfer->target()->endpoint;
    endpoint.waiting->note(now);
    KeptConnections::of_process().leave(endpoint);
    const double patience_s = std::ldexp(kPatienceS, transfer->block().times_unserved);
    const bool is_patient = seconds_between(flight.started, now) < patience_s;
    if (!is_patient && is_another_served(*transfer, flight)) unserved.push_back(transfer);
  }
  if (unserved.empty()) return;
  for (HttpTransfer* transfer : unserved) leave_unserved(*transfer, now);
  window_.shrink(static_cast<unsigned>(connections_), now);
  if (connections_ == 0) leave_if_others_remain();
}

// The request was never answered, on a connection that was made for it.
bool HttpReactor::waits_unserved(const HttpTransfer& transfer, const Flight& flight,
                                 TimePoint now) {
  const bool has_duplicate = flight.partner != nullptr && !flight.hedge;
  if (has_duplicate) return false;  // that goes first
  const double waited_s = seconds_between(flight.started, now);
  if (waited_s < kPatienceS || !transfer.was_silent_anew()) return false;
  return waited_s > transfer.target()->endpoint->slow_after_s().value_or(0) * kTimesUsual;
}

// The server works: a connection of ours has nothing to do; or one that had answered before
// answered again, to a request that was sent later than this one, or not long before.
bool HttpReactor::is_another_served(const HttpTransfer& transfer, const Flight& flight) const {
  return connections_ > active_.size() ||
         transfer.target()->endpoint->answered_again.value() > after(flight.started, -kPatienceS);
}

void HttpReactor::leave_unserved(HttpTransfer& transfer, TimePoint now) {
  Flight flight = cancel(transfer);
  transfer.target()->endpoint->addresses->record_silence(transfer.address(), now);
  if (flight.hedge) return settle_duplicate(std::move(flight), false);
  Block block = transfer.take_block();
  block.is_for_known_connection = true;
  ++block.times_unserved;
  put_back(std::move(block), now);
}

// For this reactor or another. It is no failure of the request: no server looked at it.
void HttpReactor::put_back(Block block, TimePoint due) {
  --block.attempts;
  scheduler_.requeue(Lane::kHttp, std::move(block), due);
}

void HttpReactor::leave_if_others_remain() {
  is_leaving_ = is_leaving_ || counters_.reactors.leave_to_others();
}

// Puts the block back without counting an attempt, as it was never sent: for this reactor, which
// keeps to the connections it has, or for the others where it has none. False when nobody has one.
bool HttpReactor::wait_for_descriptor(Block& block) {
  if (active_.empty()) {
    leave_if_others_remain();
    if (!is_leaving_) return false;
  }
  window_.limit(static_cast<unsigned>(active_.size()));
  put_back(std::move(block), after(Clock::now(), kDescriptorPollS));
  return true;
}

}  // namespace streamer
