#include "http/hedged_requests.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

namespace streamer {

void HedgedRequests::send(TimePoint now) {
  std::vector<std::pair<double, HttpTransfer*>> slow;  // with the seconds since it was sent
  for (const auto& [transfer, flight] : requests_.flights()) {
    if (flight.was_hedged || flight.is_duplicate()) continue;
    const auto limit_s = transfer->target()->endpoint->slow_after_s();
    const double elapsed_s = seconds_between(flight.started, now);
    if (limit_s && elapsed_s > *limit_s && transfer->remaining_s(elapsed_s) > *limit_s) {
      slow.emplace_back(elapsed_s, transfer);
    }
  }
  std::sort(slow.rbegin(), slow.rend());
  for (const auto& [elapsed_s, transfer] : slow) send_duplicate(*transfer, now);
}

void HedgedRequests::send_duplicate(HttpTransfer& slow, TimePoint now) {
  const Block& block = slow.block();
  if (!requests_.has_idle_transfer() || block.received == block.size()) return;
  std::shared_ptr<const HttpTarget> target = slow.object().target();
  if (target->endpoint->outage()) return;
  const auto ticket = target->endpoint->try_start(now, slow.object().id());
  if (!ticket) return;
  if (!budget_.try_spend(block.end - block.first_open())) {
    target->endpoint->cancel(*ticket);
    return;
  }
  requests_.flight_of(slow).was_hedged = true;
  ++counters_.hedges;
  ++counters_.requests;
  auto hedge = std::make_unique<Hedge>(block);
  Block duplicate = hedge->block(block.source);
  duplicate.prefers_open_connection = slow.was_silent_on_new_connection();
  requests_.send(std::move(duplicate), slow.object(), std::move(target),
                 {.ticket = *ticket, .started = now, .partner = &slow, .hedge = std::move(hedge)});
}

// The slow request is cancelled before its block is changed, so the block never has two writers.
Block HedgedRequests::complete(const Flight& duplicate) {
  HttpTransfer& slow = *duplicate.partner;
  requests_.cancel(slow);
  Block block = slow.take_block();
  duplicate.hedge->complete(block);
  return block;
}

}  // namespace streamer
