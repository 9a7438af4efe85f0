#include "net/http_reactor.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace streamer {
namespace {

constexpr double kDeadlineCheckS = 0.1;
constexpr int kIdlePollMs = 1000;  // wake() ends it earlier
constexpr double kRefreshPollS =
    0.05;  // how soon a block whose credentials expired is looked at again

double unix_time_s() {
  return Seconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

HttpReactor::HttpReactor(Scheduler& scheduler,
                         const std::vector<std::unique_ptr<HttpObject>>& objects,
                         const HttpOptions& http, const RetryOptions& retry, unsigned max_in_flight,
                         HttpCounters& counters)
    : scheduler_(scheduler),
      objects_(objects),
      retry_(retry),
      counters_(counters),
      multi_(curl_multi_init()),
      window_(max_in_flight) {
  if (!multi_) throw std::runtime_error("libcurl gives no multi handle");
  for (unsigned i = 0; i < max_in_flight; ++i) {
    transfers_.push_back(std::make_unique<HttpTransfer>(http, received_bytes_));
    idle_.push_back(transfers_.back().get());
  }
}

HttpReactor::~HttpReactor() {
  for (HttpTransfer* transfer : active_) curl_multi_remove_handle(multi_.get(), transfer->handle());
}

void HttpReactor::run() {
  while (!scheduler_.is_stopped()) {
    start_blocks();
    if (is_lane_finished_ && active_.empty()) return;
    int running = 0;
    curl_multi_perform(multi_.get(), &running);
    collect_finished();
    enforce_deadlines();
    if (has_room() && !is_lane_finished_) start_blocks();
    sleep();
  }
}

void HttpReactor::start_blocks() {
  retry_at_.reset();
  while (has_room()) {
    const TimePoint now = Clock::now();
    TakeResult result = scheduler_.try_take(Lane::kHttp, now);
    is_lane_finished_ = result.is_finished;
    retry_at_ = result.retry_at;
    if (!result.block) return;
    start(std::move(*result.block), now);
  }
}

// A block whose object's credentials have expired goes back to the queue until the consumer renewed
// them.
void HttpReactor::start(Block block, TimePoint now) {
  HttpObject& object = *objects_[block.source];
  const double unix_now_s = unix_time_s();
  if (object.can_refresh() && object.is_due_for_renewal(unix_now_s)) {
    ask_refresh(object, block.source);
    if (object.is_expired(unix_now_s)) {
      scheduler_.put_back(Lane::kHttp, std::move(block), after(now, kRefreshPollS));
      return;
    }
  }
  HttpTransfer* transfer = idle_.back();
  idle_.pop_back();
  active_.insert(transfer);
  ++counters_.requests;
  transfer->prepare(std::move(block), object, now);
  curl_multi_add_handle(multi_.get(), transfer->handle());
}

void HttpReactor::collect_finished() {
  int left = 0;
  while (const CURLMsg* message = curl_multi_info_read(multi_.get(), &left)) {
    if (message->msg != CURLMSG_DONE) continue;
    char* self = nullptr;
    const CURLcode result = message->data.result;  // the message dies with the handle's removal
    curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &self);
    auto& transfer = *reinterpret_cast<HttpTransfer*>(self);
    settle(transfer, transfer.conclude(result, Clock::now()));
  }
}

void HttpReactor::enforce_deadlines() {
  const TimePoint now = Clock::now();
  if (now < next_deadline_check_) return;
  next_deadline_check_ = after(now, kDeadlineCheckS);
  const std::vector<HttpTransfer*> active(active_.begin(), active_.end());
  for (HttpTransfer* transfer : active) {
    if (auto error = transfer->check_deadlines(now)) settle(*transfer, std::move(error));
  }
}

void HttpReactor::settle(HttpTransfer& transfer, std::optional<ReadError> error) {
  release(transfer);
  if (!error) {
    scheduler_.finish(Lane::kHttp, transfer.take_block());
    return;
  }
  if (is_renewable(*error) && renew_and_retry(transfer, *error)) return;
  if (!is_retryable(*error) || error->attempts >= retry_.max_attempts) {
    scheduler_.fail(std::move(*error));
    return;
  }
  const double random = std::uniform_real_distribution<double>(0, 1)(random_);
  const double delay_s = retry_delay_s(*error, retry_, random);
  scheduler_.retry_at(Lane::kHttp, transfer.take_block(), after(Clock::now(), delay_s));
}

// The consumer is asked for a new URL or new credentials, once for all; the block waits in the
// queue.
bool HttpReactor::renew_and_retry(HttpTransfer& transfer, const ReadError& error) {
  HttpObject& object = transfer.object();
  if (!object.can_refresh() || error.attempts >= retry_.max_attempts) return false;
  object.refuse(transfer.target());
  scheduler_.retry_at(Lane::kHttp, transfer.take_block(), Clock::now());
  return true;
}

void HttpReactor::ask_refresh(HttpObject& object, std::uint32_t source) {
  if (!object.is_first_to_ask_refresh()) return;
  ++counters_.refreshes;
  scheduler_.ask_refresh(source);
}

void HttpReactor::release(HttpTransfer& transfer) {
  curl_multi_remove_handle(multi_.get(), transfer.handle());
  active_.erase(&transfer);
  idle_.push_back(&transfer);
}

void HttpReactor::sleep() {
  const TimePoint before = Clock::now();
  curl_multi_poll(multi_.get(), nullptr, 0, poll_timeout_ms(), nullptr);
  if (has_room()) {
    window_.restart(before, received_bytes_);
  } else {
    window_.record_sleep(before, Clock::now(), received_bytes_);
  }
}

int HttpReactor::poll_timeout_ms() const {
  double timeout_s = active_.empty() ? kIdlePollMs / 1e3 : kDeadlineCheckS;
  if (retry_at_) timeout_s = std::min(timeout_s, seconds_between(Clock::now(), *retry_at_));
  return std::max(0, static_cast<int>(timeout_s * 1e3) + 1);
}

}  // namespace streamer
