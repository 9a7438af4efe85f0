#include "http/reactor.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/descriptors.h"
#include "http/curl_failure.h"

namespace streamer {
namespace {

constexpr double kDeadlineCheckS = 0.1;
constexpr int kIdlePollMs = 1000;  // wake() ends it earlier
// Pause before a block is tried again if its credentials expired, if its endpoint has no room, or
// if there is no descriptor for it.
constexpr double kRefreshPollS = 0.05;
constexpr double kRoomPollS = 0.02;
constexpr double kDescriptorPollS = 0.02;
// Connections kept by each reactor, even if the next load needs fewer.
constexpr unsigned kConnectionsKept = 64;

std::shared_ptr<Endpoint> server_of_first(const std::vector<std::unique_ptr<HttpObject>>& objects) {
  const auto found = std::find_if(objects.begin(), objects.end(),
                                  [](const auto& object) { return object != nullptr; });
  return (*found)->target()->endpoint;
}

unsigned count_servers(const std::vector<std::unique_ptr<HttpObject>>& objects) {
  std::set<std::shared_ptr<Endpoint>> servers;
  for (const auto& object : objects) {
    if (object) servers.insert(object->target()->endpoint);
  }
  return static_cast<unsigned>(servers.size());
}

}  // namespace

HttpReactor::HttpReactor(Scheduler& scheduler,
                         const std::vector<std::unique_ptr<HttpObject>>& objects,
                         const Timeouts& timeouts, const RetryOptions& retry,
                         HedgeBudget& hedge_budget, unsigned max_in_flight, HttpCounters& counters)
    : scheduler_(scheduler),
      objects_(objects),
      retries_(scheduler, Lane::kHttp, retry),
      block_deadline_s_(retry.block_deadline_s),
      counters_(counters),
      hedge_budget_(hedge_budget),
      server_(server_of_first(objects)),
      multi_(KeptConnections::of_process().take(*server_),
             std::max(max_in_flight, kConnectionsKept)),
      requests_(multi_, timeouts, max_in_flight, scheduler.trace()),
      limit_(max_in_flight, server_->advice(), count_servers(objects), counters),
      hedged_(requests_, hedge_budget, counters),
      unserved_(requests_),
      renewals_(scheduler, counters) {}

HttpReactor::~HttpReactor() {
  requests_.cancel_all();
  // The state of a server that is down is not kept, and neither are its connections.
  if (is_reusable_ && !server_->outage()) {
    KeptConnections::of_process().keep(multi_.release(), server_);
  }
}

void HttpReactor::run() {
  drive();
  is_reusable_ = true;
}

void HttpReactor::drive() {
  while (!scheduler_.is_stopped()) {
    close_idle_connections();  // before start_blocks(), because a wake-up may get lost here
    if (!limit_.is_ending()) start_blocks();
    if ((is_lane_finished_ || limit_.is_ending()) && requests_.size() == 0) return;
    multi_.perform();
    collect_finished();
    enforce_deadlines();
    if (has_room() && !is_lane_finished_ && !limit_.is_ending()) start_blocks();
    sleep();
  }
}

// During an outage, idle connections may take the place of another reactor's probe, if the server
// limits connections. Also, a request that waits at the server may wait until one of them is
// closed.
void HttpReactor::close_idle_connections() {
  if (!requests_.are_all_connections_idle()) return;
  if (!server_->outage() && !server_->waiting->are_some(Clock::now())) return;
  requests_.close_connections();
}

void HttpReactor::start_blocks() {
  retry_at_.reset();
  while (has_room()) {
    const TimePoint now = Clock::now();
    const auto admission = [this, now](std::uint32_t source,
                                       TimePoint first_started) -> std::optional<TimePoint> {
      if (scheduler_.cached().is_lost(source)) return std::nullopt;  // start() gives its block up
      return retries_.closed_until(*objects_[source]->target()->endpoint, first_started, now);
    };
    TakeResult result = scheduler_.try_take(Lane::kHttp, now, admission);
    is_lane_finished_ = result.is_finished;
    retry_at_ = result.retry_at;
    if (!result.block) return;
    start(std::move(*result.block), now);
    if (result.has_pinned) multi_.perform();  // sends the request before the next slot is pinned
  }
}

// If the object's credentials have expired, the block goes back to the queue until the consumer has
// renewed them. If the endpoint has no room, it goes back for a moment.
void HttpReactor::start(Block block, TimePoint now) {
  if (scheduler_.cached().is_lost(block.source)) {
    scheduler_.finish_damaged(Lane::kHttp, std::move(block));
    return;
  }
  HttpObject& object = *objects_[block.source];
  if (retries_.give_up_overdue(block, *object.target()->endpoint, now)) return;
  const auto credentials = renewals_.check(object, block.source, unix_time_s());
  if (credentials == CredentialRenewals::State::kInVain) return;
  if (credentials == CredentialRenewals::State::kAwaited) {
    scheduler_.requeue_until_renewed(Lane::kHttp, std::move(block), after(now, kRefreshPollS));
    return;
  }
  std::shared_ptr<const HttpTarget> target = object.target();
  const auto ticket = target->endpoint->try_start(now, object.id());
  if (!ticket) {  // another thread was faster
    scheduler_.requeue(Lane::kHttp, std::move(block), after(now, kRoomPollS));
    return;
  }
  hedge_budget_.record_request(block.size() - block.received);
  reports_.note_block(block.size());
  ++counters_.requests;
  requests_.send(std::move(block), object, std::move(target), {.ticket = *ticket, .started = now});
}

void HttpReactor::collect_finished() {
  while (const auto finished = multi_.next_finished()) {
    char* self = nullptr;
    curl_easy_getinfo(finished->easy, CURLINFO_PRIVATE, &self);
    auto& transfer = *reinterpret_cast<HttpTransfer*>(self);
    const TimePoint now = Clock::now();
    std::optional<ReadError> error = transfer.conclude(finished->result, now);
    if (error && error->http_status == 0) {
      const double elapsed_s = seconds_between(requests_.flight_of(transfer).started, now);
      refine_connect_error(*error, transfer.target()->url, elapsed_s, !scheduler_.is_stopped());
    }
    settle(transfer, std::move(error));
  }
}

void HttpReactor::enforce_deadlines() {
  const TimePoint now = Clock::now();
  if (now < next_deadline_check_) return;
  next_deadline_check_ = after(now, kDeadlineCheckS);
  for (HttpTransfer* transfer : requests_.transfers()) {
    if (!requests_.has(*transfer)) continue;  // cancelled with its partner
    if (transfer->lacks_only_its_end(now)) {
      settle(*transfer, transfer->conclude(CURLE_OK, now));
      continue;
    }
    if (is_given_up(*transfer, now)) {
      give_up(*transfer);
      continue;
    }
    auto error = transfer->check_deadlines(now, requests_.size(), block_deadline_s_);
    if (error) settle(*transfer, std::move(error));
  }
  send_unserved_again(now);
  hedged_.send(now);
}

// Whether a request to the cache of another machine is too slow, or its machine was given up.
bool HttpReactor::is_given_up(HttpTransfer& transfer, TimePoint now) {
  const ProgressWatch* const progress = transfer.object().progress();
  if (progress == nullptr) return false;
  return scheduler_.cached().is_lost(transfer.block().source) ||
         progress->is_late(requests_.flight_of(transfer).started, now);
}

// Ends a request to the cache of another machine, which is not asked again in this load. This says
// nothing about the machine to other loads, so it is not reported to the endpoint.
void HttpReactor::give_up(HttpTransfer& transfer) {
  const Flight flight = requests_.cancel(transfer);
  if (flight.is_duplicate()) return;  // the slow request goes on, or is given up next
  if (flight.has_duplicate()) requests_.cancel(*flight.partner);
  scheduler_.finish_damaged(Lane::kHttp, transfer.take_block());
}

void HttpReactor::settle(HttpTransfer& transfer, std::optional<ReadError> error) {
  ProgressWatch* const progress = transfer.object().progress();
  if (error && progress != nullptr) {
    give_up(transfer);
    return;
  }
  if (progress != nullptr) progress->note_response();
  const Flight flight =
      requests_.release(transfer, !error || error->http_status != 0, error ? &*error : nullptr);
  const TimePoint now = Clock::now();
  if (!error) {
    reports_.report_success(transfer, flight, now);
    if (flight.has_duplicate()) requests_.cancel(*flight.partner);
    scheduler_.finish(Lane::kHttp,
                      flight.is_duplicate() ? hedged_.complete(flight) : transfer.take_block());
    return;
  }
  const bool is_of_outage = reports_.report_failure(transfer, flight, *error, now);
  if (flight.is_duplicate()) return;  // the slow request goes on
  if (flight.has_duplicate()) requests_.cancel(*flight.partner);
  try_again(transfer, std::move(*error), is_of_outage);
}

void HttpReactor::try_again(HttpTransfer& transfer, ReadError error, bool is_of_outage) {
  Block block = transfer.take_block();
  // If a server refuses or does not serve a new connection, it may have too many; then the next
  // attempt should use an open one.
  const bool is_refusal = classify(error) == FailureKind::kThrottle;
  block.prefers_open_connection = is_refusal || transfer.was_silent_on_new_connection();
  if (means_no_descriptor(error.os_error) && limit_.keep_to_open(requests_.size())) {
    put_back(std::move(block), after(Clock::now(), kDescriptorPollS));
    return;
  }
  HttpObject& object = transfer.object();
  Endpoint& endpoint = *transfer.target()->endpoint;
  error.is_at_redirect = transfer.target()->is_redirect && object.can_refresh();
  const bool is_stale = classify(error) == FailureKind::kStale;
  if (is_stale && !object.can_refresh()) {
    retries_.give_up(block, std::move(error), endpoint);
    return;
  }
  if (is_stale) object.refuse(transfer.target());
  retries_.try_again(std::move(block), std::move(error), endpoint, is_of_outage);
}

void HttpReactor::send_unserved_again(TimePoint now) {
  UnservedRequests::Cancelled cancelled = unserved_.cancel(now);
  if (cancelled.requests == 0) return;
  for (Block& block : cancelled.blocks) put_back(std::move(block), now);
  limit_.keep_to_served(requests_.connections(), now);
}

// Returns the block to the queue, for this reactor or another. No attempt is counted, because no
// server handled the request.
void HttpReactor::put_back(Block block, TimePoint due) {
  --block.attempts;
  scheduler_.requeue(Lane::kHttp, std::move(block), due);
}

void HttpReactor::sleep() {
  const TimePoint before = Clock::now();
  multi_.wait(poll_timeout_ms());
  limit_.record_sleep(before, Clock::now(), requests_.received_bytes(), requests_.size());
}

int HttpReactor::poll_timeout_ms() const {
  double timeout_s = requests_.size() == 0 ? kIdlePollMs / 1e3 : kDeadlineCheckS;
  if (retry_at_) timeout_s = std::min(timeout_s, seconds_between(Clock::now(), *retry_at_));
  return std::max(0, static_cast<int>(timeout_s * 1e3) + 1);
}

}  // namespace streamer
