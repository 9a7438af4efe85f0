#include "net/outage.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace streamer {
namespace {

constexpr double kInARow = 3;  // one or two failures can be chance
constexpr std::uint64_t kShare = 4;
constexpr double kTogetherS = 1;
// The smallest shares of failed requests within that time that begin an outage. If one of four
// servers behind an address refuses everything, only the window shrinks, because the other three
// work.
constexpr double kShareOfFailures = 0.25;
constexpr double kShareOfRefusals = 0.75;
// If a server refuses a larger share of all requests, the refusal of the first one after an outage
// may be chance.
constexpr double kRareShare = 0.125;
// If the first response after the probe is a refusal again, the outage is not over. Waiting for
// more good responses caused more outages, because each outage starts from the beginning. With two
// responses there were three times as many outages if a quarter of the requests was refused.
constexpr std::uint64_t kFewGood = 1;

// The n-th probe waits kProbeS * 2^n for its response (n counts from 1), so that a slow server gets
// enough time in the end.
constexpr double kProbeS = 1;
// Prevents an overflow of the clock; the deadline of a block is always earlier.
constexpr double kLongestRetryAfterS = 86400;

}  // namespace

std::string summary_of(const ReadError& error) {
  std::string text = error.detail;
  if (error.http_status != 0) text += " (HTTP " + std::to_string(error.http_status) + ")";
  if (!error.request_id.empty()) text += ", request " + error.request_id;
  return text;
}

std::string description_of(const std::string& server, const OutageRecord& outage, TimePoint now) {
  std::array<char, 96> text{};
  std::snprintf(text.data(), text.size(), " has been failing for %.1f s and %llu request%s",
                seconds_between(outage.since, now), static_cast<unsigned long long>(outage.failed),
                outage.failed == 1 ? "" : "s");
  std::string story = server + text.data();
  if (outage.last_failure.retry_after_s > 0) {
    std::snprintf(text.data(), text.size(), "; it asks for a pause of %.0f s",
                  std::floor(outage.last_failure.retry_after_s));
    story += text.data();
  }
  return story;
}

OutageTicket Outage::start(std::uint64_t object) {
  if (is_open_) {
    is_probing_ = true;
    probe_lost_at_ = TimePoint::max();
    ++story_.probes;
  }
  if (!is_open_) return {.epoch = epoch_, .object = object};
  return {.epoch = epoch_,
          .object = object,
          .is_probe = true,
          .first_byte_s = kProbeS * std::pow(2.0, pauses_)};
}

void Outage::finish_well(const OutageTicket& ticket, TimePoint now) {
  ++good_;
  if (!is_open_) record_share();
  failed_in_a_row_ = 0;
  if (ticket.object != 0 && ticket.object != answered_[0])
    answered_ = {ticket.object, answered_[0]};
  const bool is_probe =
      is_open_ && ticket.epoch == epoch_;  // older requests say nothing about the server now
  if (is_probe) close(now);
}

bool Outage::finish_badly(const OutageTicket& ticket, FailureKind kind, const ReadError& error,
                          std::uint32_t in_flight, TimePoint now, double random, bool is_least) {
  const std::uint64_t object = may_be_of_one_object(error) ? ticket.object : 0;
  if (is_open_ && story_.only_object != object) story_.only_object = 0;
  if (ticket.epoch != epoch_) {
    story_.failed += is_open_;
    return true;
  }
  if (!is_open_) {
    ++failed_in_a_row_;
    failures_.push_back({now, good_, object});
    const bool is_too_much_now = is_too_much(kind, in_flight, now);
    if (!is_too_much_now && !wants_a_pause(kind, error) && !is_least) return false;
    open(now);
    story_.first_failure = summary_of(error);
    const bool are_of_one =
        std::all_of(failures_.begin(), failures_.end(),
                    [object](const Failed& one) { return one.object == object; });
    story_.only_object = are_of_one ? object : 0;
  }
  ++story_.failed;
  story_.last_failure = error;
  pause(kind, error.retry_after_s, now, random);
  return true;
}

void Outage::cancel(const OutageTicket& ticket) {
  if (ticket.is_probe && ticket.epoch == epoch_) is_probing_ = false;
}

bool Outage::is_fault_of(std::uint64_t object) const {
  const bool are_others_answered = std::any_of(
      answered_.begin(), answered_.end(), [object](auto one) { return one != 0 && one != object; });
  return object != 0 && are_others_answered && (!is_open_ || story_.only_object == object);
}

OutageTotals Outage::totals(TimePoint now) const {
  OutageTotals totals = ended_;
  if (!is_open_) return totals;
  ++totals.outages;
  totals.probes += story_.probes;
  totals.waited_s += seconds_between(story_.since, now);
  return totals;
}

void Outage::open(TimePoint now) {
  is_open_ = true;
  ++epoch_;
  pauses_ = 0;
  story_ = {};
  story_.since = now;
}

void Outage::close(TimePoint now) {
  ended_ = totals(now);
  is_open_ = is_probing_ = false;
  ++epoch_;
  failed_in_a_row_ = 0;
  good_before_epoch_ = good_;
  failures_.clear();
}

void Outage::pause(FailureKind kind, double retry_after_s, TimePoint now, double random) {
  is_probing_ = false;
  const Pauses& pauses = kind == FailureKind::kThrottle ? kAfterThrottle : kAfterFailure;
  const double longest_s = pauses.limit_s(pauses_++);
  const double asked_s = std::clamp(retry_after_s, 0.0, kLongestRetryAfterS);
  probe_at_ = after(now, std::max(random * longest_s, asked_s));
}

// A row of failures that ends with a good response was chance, not the start of an outage.
void Outage::record_share() {
  for (std::uint64_t i = 0; i < failed_in_a_row_; ++i) share_.record(true);
  share_.record(false);
}

// Three broken connections in a row are not chance, however many requests are in flight. Refusals
// are different: if a server refuses one request in ten, three refusals in a row happen once in a
// thousand responses. So refusals are an outage only if
// they are a large part of the requests in flight.
bool Outage::is_too_much(FailureKind kind, std::uint32_t in_flight, TimePoint now) {
  while (seconds_between(failures_.front().at, now) > kTogetherS) failures_.pop_front();
  const std::uint64_t failed = failures_.size();
  const std::uint64_t good = good_ - failures_.front().good_before;
  const bool is_refusal = kind == FailureKind::kThrottle;
  const auto in_a_row = static_cast<std::uint64_t>(std::ceil(kInARow * share_.row_factor()));
  const std::uint64_t many = std::max<std::uint64_t>(in_a_row, in_flight / kShare);
  const double least_share =
      std::max(is_refusal ? kShareOfRefusals : kShareOfFailures, std::sqrt(share_.value()));
  const double share = static_cast<double>(failed) / static_cast<double>(failed + good);
  return failed_in_a_row_ >= (is_refusal ? many : in_a_row) ||
         (failed >= many && share >= least_share);
}

// Whether a pause would help. A server that refuses one of many requests needs fewer requests at a
// time, not a pause.
bool Outage::wants_a_pause(FailureKind kind, const ReadError& error) const {
  if (kind != FailureKind::kThrottle) return false;
  const std::uint64_t good = good_ - good_before_epoch_;
  const bool is_first_again = good_ > 0 && good < kFewGood && share_.value() < kRareShare;
  return error.retry_after_s > 0 || is_first_again;
}

}  // namespace streamer
