#include "http/requests_in_flight.h"

#include <algorithm>
#include <utility>

namespace streamer {

RequestsInFlight::RequestsInFlight(CurlMulti& multi, const Timeouts& timeouts,
                                   unsigned max_in_flight, TraceLog* trace)
    : multi_(multi), trace_(trace) {
  for (unsigned i = 0; i < max_in_flight; ++i) {
    transfers_.push_back(std::make_unique<HttpTransfer>(timeouts, received_bytes_));
    idle_.push_back(transfers_.back().get());
  }
}

std::vector<HttpTransfer*> RequestsInFlight::transfers() const {
  std::vector<HttpTransfer*> all;
  for (const auto& [transfer, flight] : flights_) all.push_back(transfer);
  return all;
}

HttpTransfer& RequestsInFlight::send(Block block, HttpObject& object,
                                     std::shared_ptr<const HttpTarget> target, Flight flight) {
  may_have_idle_ = true;
  HttpTransfer* transfer = idle_.back();
  idle_.pop_back();
  transfer->prepare(std::move(block), object, std::move(target), flight.started,
                    flight.ticket.first_byte_s);
  if (flight.partner != nullptr) flights_.at(flight.partner).partner = transfer;
  flights_.emplace(transfer, std::move(flight));
  connections_ = std::max(connections_, flights_.size());
  multi_.add(transfer->handle());
  return *transfer;
}

Flight RequestsInFlight::release(HttpTransfer& transfer, bool keeps_connection,
                                 const ReadError* error) {
  if (!keeps_connection && connections_ > 0) --connections_;
  multi_.remove(transfer.handle());
  Flight flight = std::move(flights_.extract(&transfer).mapped());
  if (trace_ != nullptr) trace_->add(transfer.traced(error), flight.started);
  const auto partner = flights_.find(flight.partner);
  if (partner != flights_.end()) partner->second.partner = nullptr;
  idle_.push_back(&transfer);
  return flight;
}

Flight RequestsInFlight::cancel(HttpTransfer& transfer) {
  static const ReadError cancelled =
      error_of(ErrorCode::kConnect, "cancelled: another request was faster, or the load has ended");
  Flight flight = release(transfer, false, &cancelled);
  transfer.target()->endpoint->cancel(flight.ticket);
  return flight;
}

void RequestsInFlight::cancel_all() {
  for (HttpTransfer* transfer : transfers()) cancel(*transfer);
}

void RequestsInFlight::close_connections() {
  may_have_idle_ = false;
  connections_ = 0;
  multi_.close_connections();
}

}  // namespace streamer
