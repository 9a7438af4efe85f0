// The part of the reactor that sends slow requests a second time.
#include <algorithm>
#include <utility>

#include "http/reactor.h"

namespace streamer {

void HttpReactor::hedge_slow_ones(TimePoint now) {
  std::vector<std::pair<double, HttpTransfer*>> slow;  // with the seconds since it was sent
  for (const auto& [transfer, flight] : active_) {
    if (flight.was_hedged || flight.hedge) continue;
    const auto limit_s = transfer->target()->endpoint->slow_after_s();
    const double elapsed_s = seconds_between(flight.started, now);
    if (limit_s && elapsed_s > *limit_s && transfer->remaining_s(elapsed_s) > *limit_s) {
      slow.emplace_back(elapsed_s, transfer);
    }
  }
  std::sort(slow.rbegin(), slow.rend());
  for (const auto& [elapsed_s, transfer] : slow) hedge(*transfer, active_.at(transfer), now);
}

// Sends a duplicate if a transfer is idle, the server has room and no outage, and the budget allows
// it.
void HttpReactor::hedge(HttpTransfer& slow, Flight& flight, TimePoint now) {
  const Block& block = slow.block();
  if (idle_.empty() || block.received == block.size()) return;
  std::shared_ptr<const HttpTarget> target = slow.object().target();
  if (target->endpoint->outage()) return;
  const auto ticket = target->endpoint->try_start(now, slow.object().id());
  if (!ticket) return;
  if (!hedge_budget_.try_spend(block.end - block.first_open())) {
    target->endpoint->cancel(*ticket);
    return;
  }
  flight.was_hedged = true;
  ++counters_.hedges;
  auto hedge = std::make_unique<Hedge>(block);
  Block duplicate = hedge->block(block.source);
  duplicate.prefers_open_connection = slow.was_silent_on_new_connection();
  send(std::move(duplicate), slow.object(), std::move(target),
       {.ticket = *ticket, .started = now, .partner = &slow, .hedge = std::move(hedge)});
}

HttpReactor::Flight HttpReactor::cancel(HttpTransfer& transfer) {
  Flight flight = release(transfer, false);
  transfer.target()->endpoint->cancel(flight.ticket);
  return flight;
}

// The slow request is cancelled before its block is changed, so the block never has two writers.
void HttpReactor::settle_duplicate(Flight duplicate, bool is_complete) {
  HttpTransfer& slow = *duplicate.partner;
  if (!is_complete) {
    active_.at(&slow).partner = nullptr;
    return;
  }
  cancel(slow);
  Block block = slow.take_block();
  duplicate.hedge->complete(block);
  scheduler_.finish(Lane::kHttp, std::move(block));
}

}  // namespace streamer
