#include "http/reactor.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "base/descriptors.h"
#include "http/curl_failure.h"

namespace streamer {
namespace {

constexpr double kDeadlineCheckS = 0.1;
constexpr int kIdlePollMs = 1000;  // wake() ends it earlier
// Pause before a block is tried again if its credentials expired, or if its endpoint has no room.
constexpr double kRefreshPollS = 0.05;
constexpr double kRoomPollS = 0.02;

// These errors of libcurl are not caused by a request, so they end this thread, and with it the
// load.
void check(CURLMcode result) {
  if (result != CURLM_OK) throw std::runtime_error(curl_multi_strerror(result));
}

std::shared_ptr<Endpoint> server_of_first(const std::vector<std::unique_ptr<HttpObject>>& objects) {
  const auto found = std::find_if(objects.begin(), objects.end(),
                                  [](const auto& object) { return object != nullptr; });
  return (*found)->target()->endpoint;
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
      server_(server_of_first(objects)),
      window_(max_in_flight, server_->advice()),
      hedge_budget_(hedge_budget) {
  for (unsigned i = 0; i < max_in_flight; ++i) {
    transfers_.push_back(std::make_unique<HttpTransfer>(timeouts, received_bytes_));
    idle_.push_back(transfers_.back().get());
  }
  use(KeptConnections::of_process().take(*server_));
}

HttpReactor::~HttpReactor() {
  for (const auto& [transfer, flight] : active_) {
    curl_multi_remove_handle(multi_.get(), transfer->handle());
    transfer->target()->endpoint->cancel(flight.ticket);
  }
  // The state of a server that is down is not kept, and neither are its connections.
  if (is_reusable_ && !server_->outage()) {
    KeptConnections::of_process().keep(std::move(multi_), server_);
  }
}

void HttpReactor::run() {
  drive();
  is_reusable_ = true;
}

void HttpReactor::drive() {
  while (!scheduler_.is_stopped()) {
    close_idle_connections();  // before start_blocks(), because a wake-up may get lost here
    if (!is_ending_) start_blocks();
    if ((is_lane_finished_ || is_ending_) && active_.empty()) return;
    perform();
    collect_finished();
    enforce_deadlines();
    if (has_room() && !is_lane_finished_ && !is_ending_) start_blocks();
    sleep();
  }
}

void HttpReactor::start_blocks() {
  retry_at_.reset();
  while (has_room()) {
    const TimePoint now = Clock::now();
    const auto admission = [this, now](std::uint32_t source, TimePoint first_started) {
      return retries_.closed_until(*objects_[source]->target()->endpoint, first_started, now);
    };
    TakeResult result = scheduler_.try_take(Lane::kHttp, now, admission);
    is_lane_finished_ = result.is_finished;
    retry_at_ = result.retry_at;
    if (!result.block) return;
    start(std::move(*result.block), now);
    if (result.has_pinned) perform();  // sends the request before the next slot is pinned
  }
}

void HttpReactor::perform() {
  int running = 0;
  check(curl_multi_perform(multi_.get(), &running));
}

// If the object's credentials have expired, the block goes back to the queue until the consumer has
// renewed them. If the endpoint has no room, it goes back for a moment.
void HttpReactor::start(Block block, TimePoint now) {
  HttpObject& object = *objects_[block.source];
  if (retries_.give_up_overdue(block, *object.target()->endpoint, now)) return;
  const double unix_now_s = unix_time_s();
  if (object.is_renewed_in_vain()) {
    ReadError error = error_of(ErrorCode::kClockSkew,
                               "the new credentials had already expired by this machine's clock, "
                               "several times in a row");
    error.source = block.source;
    scheduler_.fail(std::move(error));
    return;
  }
  if (object.can_refresh() && object.is_due_for_renewal(unix_now_s)) {
    ask_refresh(object, block.source);
    if (object.is_expired(unix_now_s)) {
      scheduler_.requeue_until_renewed(Lane::kHttp, std::move(block), after(now, kRefreshPollS));
      return;
    }
  }
  std::shared_ptr<const HttpTarget> target = object.target();
  const auto ticket = target->endpoint->try_start(now, object.id());
  if (!ticket) {  // another thread was faster
    scheduler_.requeue(Lane::kHttp, std::move(block), after(now, kRoomPollS));
    return;
  }
  hedge_budget_.record_request(block.size() - block.received);
  full_size_bytes_ = std::max(full_size_bytes_, block.size());
  send(std::move(block), object, std::move(target), {.ticket = *ticket, .started = now});
}

void HttpReactor::send(Block block, HttpObject& object, std::shared_ptr<const HttpTarget> target,
                       Flight flight) {
  may_have_idle_ = true;
  HttpTransfer* transfer = idle_.back();
  idle_.pop_back();
  ++counters_.requests;
  transfer->prepare(std::move(block), object, std::move(target), flight.started,
                    flight.ticket.first_byte_s);
  if (flight.partner != nullptr) active_.at(flight.partner).partner = transfer;
  active_.emplace(transfer, std::move(flight));
  connections_ = std::max(connections_, active_.size());
  check(curl_multi_add_handle(multi_.get(), transfer->handle()));
}

void HttpReactor::collect_finished() {
  int left = 0;
  while (const CURLMsg* message = curl_multi_info_read(multi_.get(), &left)) {
    if (message->msg != CURLMSG_DONE) continue;
    char* self = nullptr;
    const CURLcode result = message->data.result;  // removing the handle frees the message
    curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &self);
    auto& transfer = *reinterpret_cast<HttpTransfer*>(self);
    const TimePoint now = Clock::now();
    std::optional<ReadError> error = transfer.conclude(result, now);
    if (error && error->http_status == 0) {
      const double elapsed_s = seconds_between(active_.at(&transfer).started, now);
      refine_connect_error(*error, transfer.target()->url, elapsed_s, !scheduler_.is_stopped());
    }
    settle(transfer, std::move(error));
  }
}

void HttpReactor::enforce_deadlines() {
  const TimePoint now = Clock::now();
  if (now < next_deadline_check_) return;
  next_deadline_check_ = after(now, kDeadlineCheckS);
  std::vector<HttpTransfer*> active;
  for (const auto& [transfer, flight] : active_) active.push_back(transfer);
  for (HttpTransfer* transfer : active) {
    if (!active_.contains(transfer)) continue;  // cancelled with its partner
    auto error = transfer->check_deadlines(now, active_.size(), block_deadline_s_);
    if (error) settle(*transfer, std::move(error));
  }
  abandon_unserved_requests(now);
  hedge_slow_ones(now);
}

void HttpReactor::settle(HttpTransfer& transfer, std::optional<ReadError> error) {
  Flight flight = release(transfer, !error || error->http_status != 0);
  Endpoint& endpoint = *transfer.target()->endpoint;
  const TimePoint now = Clock::now();
  bool is_of_outage = false;
  if (error && means_no_descriptor(error->os_error)) {
    endpoint.cancel(flight.ticket);  // the request was never sent
  } else if (error) {
    is_of_outage = endpoint.finish_badly(flight.ticket, *error, now);
    error->is_of_object = endpoint.is_fault_of(flight.ticket.object, *error);
    const bool is_refusal = classify(*error) == FailureKind::kThrottle;
    if (is_of_outage || is_refusal) KeptConnections::of_process().close(endpoint);
    if (transfer.was_silent()) endpoint.addresses->record_silence(transfer.address(), now);
  } else {
    const double seconds = seconds_between(flight.started, now);
    const bool is_full_size = transfer.block().size() * 2 >= full_size_bytes_;
    endpoint.finish_well(flight.ticket, seconds, is_full_size, now);
    if (!transfer.has_new_connection()) endpoint.answered_again.note(flight.started);
    if (transfer.block().attempts == 1 && !flight.hedge) {
      record_answer(transfer, is_full_size, now);
    }
  }
  if (flight.hedge) {
    settle_duplicate(std::move(flight), !error);
    return;
  }
  if (flight.partner != nullptr) cancel(*flight.partner);
  if (error) {
    try_again(transfer, std::move(*error), is_of_outage);
  } else {
    scheduler_.finish(Lane::kHttp, transfer.take_block());
  }
}

void HttpReactor::record_answer(const HttpTransfer& transfer, bool is_full_size, TimePoint now) {
  Endpoint& endpoint = *transfer.target()->endpoint;
  const AnswerTimes times = transfer.answered_in();
  const std::uint64_t bytes = transfer.block().size();
  endpoint.record_answer(bytes, times);
  if (!is_full_size) return;
  const double body_s = std::max(times.complete_s - times.first_byte_s, 1e-6);
  endpoint.addresses->record(transfer.address(), static_cast<double>(bytes) / body_s, now);
}

void HttpReactor::try_again(HttpTransfer& transfer, ReadError error, bool is_of_outage) {
  Block block = transfer.take_block();
  // If a server refuses or does not serve a new connection, it may have too many; then the next
  // attempt should use an open one.
  const bool is_refusal = classify(error) == FailureKind::kThrottle;
  block.prefers_open_connection = is_refusal || transfer.was_silent_on_new_connection();
  if (means_no_descriptor(error.os_error) && wait_for_descriptor(block)) return;
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

void HttpReactor::ask_refresh(HttpObject& object, std::uint32_t source) {
  if (!object.is_first_to_ask_refresh()) return;
  ++counters_.refreshes;
  scheduler_.ask_refresh(source);
}

HttpReactor::Flight HttpReactor::release(HttpTransfer& transfer, bool keeps_connection) {
  if (!keeps_connection && connections_ > 0) --connections_;
  curl_multi_remove_handle(multi_.get(), transfer.handle());
  Flight flight = std::move(active_.extract(&transfer).mapped());
  idle_.push_back(&transfer);
  return flight;
}

void HttpReactor::sleep() {
  const TimePoint before = Clock::now();
  curl_multi_poll(multi_.get(), nullptr, 0, poll_timeout_ms(), nullptr);
  counters_.received_bytes += received_bytes_ - counted_bytes_;
  counted_bytes_ = received_bytes_;
  const ReceivedBytes received{.by_reactor = counted_bytes_, .in_all = counters_.received_bytes};
  if (has_room()) {
    window_.restart(before, received);
  } else {
    window_.record_sleep(before, Clock::now(), received);
  }
}

int HttpReactor::poll_timeout_ms() const {
  double timeout_s = active_.empty() ? kIdlePollMs / 1e3 : kDeadlineCheckS;
  if (retry_at_) timeout_s = std::min(timeout_s, seconds_between(Clock::now(), *retry_at_));
  return std::max(0, static_cast<int>(timeout_s * 1e3) + 1);
}

}  // namespace streamer
