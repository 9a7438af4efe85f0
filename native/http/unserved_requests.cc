#include "http/unserved_requests.h"

#include <cmath>
#include <utility>

#include "http/kept_connections.h"

namespace streamer {
namespace {

constexpr double kLongWaitS = WaitingRequests::kLongWaitS;
constexpr double kTimesUsual = 4;

// Whether the request has waited long without any response on a new connection.
bool waits_unserved(const HttpTransfer& transfer, const Flight& flight, TimePoint now) {
  if (flight.has_duplicate()) return false;  // the duplicate is given up first
  const double waited_s = seconds_between(flight.started, now);
  if (waited_s < kLongWaitS || !transfer.was_silent_on_new_connection()) return false;
  return waited_s > transfer.target()->endpoint->slow_after_s().value_or(0) * kTimesUsual;
}

}  // namespace

UnservedRequests::Cancelled UnservedRequests::cancel(TimePoint now) {
  std::vector<HttpTransfer*> unserved;
  for (const auto& [transfer, flight] : requests_.flights()) {
    if (!waits_unserved(*transfer, flight, now)) continue;
    Endpoint& endpoint = *transfer->target()->endpoint;
    endpoint.waiting->note(now);
    KeptConnections::of_process().close(endpoint);
    if (has_waited_too_long(*transfer, flight, now)) unserved.push_back(transfer);
  }
  Cancelled cancelled{.requests = unserved.size(), .blocks = {}};
  for (HttpTransfer* transfer : unserved) {
    const Flight flight = requests_.cancel(*transfer);
    transfer->target()->endpoint->addresses->record_silence(address_of(transfer->handle()), now);
    if (flight.is_duplicate()) continue;
    Block block = transfer->take_block();
    block.prefers_open_connection = true;
    ++block.times_unserved;
    cancelled.blocks.push_back(std::move(block));
  }
  return cancelled;
}

// The limit doubles each time, because responses for some objects are slow to begin.
bool UnservedRequests::has_waited_too_long(const HttpTransfer& transfer, const Flight& flight,
                                           TimePoint now) const {
  const double limit_s = std::ldexp(kLongWaitS, transfer.block().times_unserved);
  return seconds_between(flight.started, now) >= limit_s && is_another_served(transfer, flight);
}

// Whether the server serves other connections: this reactor has an idle connection, or the server
// answered a request on a connection that had answered before. Such a request counts if it was sent
// at most kLongWaitS before `flight`, or later.
bool UnservedRequests::is_another_served(const HttpTransfer& transfer, const Flight& flight) const {
  return requests_.has_idle_connection() ||
         transfer.target()->endpoint->answered_again.value() > after(flight.started, -kLongWaitS);
}

}  // namespace streamer
