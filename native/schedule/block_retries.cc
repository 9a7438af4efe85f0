#include "schedule/block_retries.h"

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>

namespace streamer {
namespace {

// Lookups in Python wait as long for an object that may fail alone (core/outages/outage_waits.py).
constexpr double kRetryLimitOfObjectS = 10;

double drawn() {
  thread_local std::mt19937_64 random{std::random_device{}()};
  return std::uniform_real_distribution<double>(0, 1)(random);
}

}  // namespace

std::optional<TimePoint> BlockRetries::closed_until(Endpoint& endpoint, TimePoint first_started,
                                                    TimePoint now) const {
  if (is_overdue(first_started, now)) return std::nullopt;
  return endpoint.closed_until(now);
}

bool BlockRetries::is_overdue(TimePoint first_started, TimePoint now) const {
  return first_started != TimePoint{} &&
         seconds_between(first_started, now) >= options_.block_deadline_s;
}

bool BlockRetries::give_up_overdue(const Block& block, Endpoint& endpoint, TimePoint now) const {
  if (!block.last_failure || !is_overdue(block.first_started, now)) return false;
  ReadError error = *block.last_failure;
  error.attempts = block.attempts;
  error.elapsed_s = seconds_between(block.first_started, now);
  give_up(block, std::move(error), endpoint);
  return true;
}

bool BlockRetries::try_again(Block block, ReadError error, Endpoint& endpoint,
                             bool is_of_outage) const {
  const FailureKind kind = classify(error);
  const bool is_stale = kind == FailureKind::kStale;
  block.wrong_answers += kind == FailureKind::kWrongAnswer;
  block.renewals += is_stale;
  block.attempts_in_outages += is_of_outage;
  const AttemptHistory history{.attempts = block.attempts - block.attempts_in_outages,
                               .wrong_answers = block.wrong_answers,
                               .renewals = block.renewals,
                               .elapsed_s = error.elapsed_s,
                               .row_factor = endpoint.row_factor(),
                               .has_server_answered = endpoint.has_answered()};
  const bool is_lasting = error.is_of_object && error.elapsed_s >= kRetryLimitOfObjectS;
  if (is_lasting || !is_worth_another_attempt(error, history, options_)) {
    give_up(block, std::move(error), endpoint);
    return false;
  }
  if (block.first_failure.empty()) block.first_failure = summary_of(error);
  // A probe for another object must show whether the whole server fails, or only this object.
  const bool may_fail_alone = may_be_of_one_object(error);
  const bool waits_for_others = is_stale || (is_of_outage && !may_fail_alone);
  const int attempts = may_fail_alone ? block.attempts : history.attempts;
  const double delay_s = waits_for_others ? 0 : retry_delay_s(error, attempts, options_, drawn());
  block.last_failure = std::make_shared<const ReadError>(std::move(error));
  const TimePoint deadline = after(block.first_started, options_.block_deadline_s);
  const TimePoint due = std::min(after(Clock::now(), delay_s), deadline);
  scheduler_.retry_at(lane_, std::move(block), due);
  return true;
}

// In an outage, the server's last failure is the cause. The last failure of this block may be old.
void BlockRetries::give_up(const Block& block, ReadError error, Endpoint& endpoint) const {
  if (error.is_of_object) {
    error.code = ErrorCode::kObjectFailure;
    // The sentence may be the server's own.
    if (error.detail.ends_with('.')) error.detail.pop_back();
    error.detail += ", for this object alone: it answers for others";
    scheduler_.fail(std::move(error));
    return;
  }
  std::string first = block.first_failure;
  std::string story;
  if (const auto outage = endpoint.outage()) {
    error.code = outage->last_failure.code;
    error.detail = outage->last_failure.detail;
    error.http_status = outage->last_failure.http_status;
    error.os_error = outage->last_failure.os_error;
    error.storage_code = outage->last_failure.storage_code;
    error.request_id = outage->last_failure.request_id;
    error.is_of_proxy = outage->last_failure.is_of_proxy;
    error.proxy = outage->last_failure.proxy;
    first = outage->first_failure;
    story = "; " + description_of(endpoint.name(), *outage, Clock::now());
  }
  const bool is_another = !first.empty() && !first.starts_with(error.detail);
  if (!error.detail.empty() && error.detail.back() == '.') error.detail.pop_back();
  error.detail += story;
  if (is_another) error.detail += "; at first: " + first;
  scheduler_.fail(std::move(error));
}

}  // namespace streamer
