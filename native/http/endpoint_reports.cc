#include "http/endpoint_reports.h"

#include "base/descriptors.h"
#include "http/kept_connections.h"
#include "net/retry.h"

namespace streamer {
namespace {

void record_answer(const HttpTransfer& transfer, bool is_full_size, TimePoint now) {
  Endpoint& endpoint = *transfer.target()->endpoint;
  const AnswerTimes times = transfer.answered_in();
  const std::uint64_t bytes = transfer.block().size();
  endpoint.record_answer(bytes, times);
  if (!is_full_size) return;
  const double body_s = std::max(times.complete_s - times.first_byte_s, 1e-6);
  endpoint.addresses->record(address_of(transfer.handle()), static_cast<double>(bytes) / body_s,
                             now);
}

}  // namespace

void EndpointReports::report_success(const HttpTransfer& transfer, const Flight& flight,
                                     TimePoint now) const {
  Endpoint& endpoint = *transfer.target()->endpoint;
  const bool is_full_size = transfer.block().size() * 2 >= full_size_bytes_;
  endpoint.finish_well(flight.ticket, seconds_between(flight.started, now), is_full_size, now);
  if (!transfer.has_new_connection()) endpoint.answered_again.note(flight.started);
  const bool is_first_attempt = transfer.block().attempts == 1 && !flight.is_duplicate();
  if (is_first_attempt) record_answer(transfer, is_full_size, now);
}

bool EndpointReports::report_failure(const HttpTransfer& transfer, const Flight& flight,
                                     ReadError& error, TimePoint now) const {
  Endpoint& endpoint = *transfer.target()->endpoint;
  if (means_no_descriptor(error.os_error)) {
    endpoint.cancel(flight.ticket);  // the request was never sent
    return false;
  }
  const bool is_of_outage = endpoint.finish_badly(flight.ticket, error, now);
  error.is_of_object = endpoint.is_fault_of(flight.ticket.object, error);
  const bool is_refusal = classify(error) == FailureKind::kThrottle;
  if (is_of_outage || is_refusal) KeptConnections::of_process().close(endpoint);
  if (transfer.was_silent()) endpoint.addresses->record_silence(address_of(transfer.handle()), now);
  return is_of_outage;
}

}  // namespace streamer
