#include "net/lookup.h"

#include <atomic>
#include <utility>

namespace streamer {
namespace {

// Differs from every HttpObject::id(), because these count from one.
constexpr std::uint64_t kFirstNumber = std::uint64_t{1} << 63;

std::uint64_t next_number() {
  static std::atomic<std::uint64_t> next{kFirstNumber};
  return next++;
}

// Reads use an endpoint with the same name. The name includes the NFS version if that is not the
// default, because each version is a separate service.
std::shared_ptr<Endpoint> endpoint_of(const std::string& server, const std::string& proxy) {
  return server.starts_with("nfs://") ? Endpoint::named(server) : Endpoint::of(server, proxy);
}

}  // namespace

Lookup::Lookup(const std::string& server, const std::string& proxy)
    : server_(endpoint_of(server, proxy)), number_(next_number()) {}

void Lookup::end() {
  cancel();
  under_way_.reset();
}

std::optional<double> Lookup::try_start() {
  const TimePoint now = Clock::now();
  ticket_ = server_->try_start_lookup(now, number_);
  if (ticket_) return std::nullopt;
  const auto closed_until = server_->closed_until(now);
  return closed_until ? seconds_between(now, *closed_until) : 0;
}

double Lookup::first_byte_s() const {
  return ticket_ ? ticket_->first_byte_s : std::numeric_limits<double>::infinity();
}

void Lookup::finish_well() {
  if (!ticket_) return;
  server_->finish_well(*std::exchange(ticket_, std::nullopt), 0, false, Clock::now());
  failures_ = 0;
}

std::optional<double> Lookup::finish_badly(ReadError error, int requests, double random) {
  const TimePoint now = Clock::now();
  bool is_of_outage = false;
  for (int i = 0; i < requests && !is_of_outage; ++i) {
    const auto ticket = i == 0 && ticket_ ? std::exchange(ticket_, std::nullopt)
                                          : server_->try_start_lookup(now, number_);
    if (!ticket) break;  // there is an outage, and others send its probes
    is_of_outage = server_->finish_badly(*ticket, error, now);
  }
  fails_alone_ = server_->is_fault_of(number_, error);
  ++failures_;
  if (is_of_outage || server_->outage()) return std::nullopt;
  return retry_delay_s(error, failures_, RetryOptions{}, random);
}

void Lookup::cancel() {
  if (ticket_) server_->cancel(*std::exchange(ticket_, std::nullopt));
}

}  // namespace streamer
