#include "net/outage.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace streamer {
namespace {

constexpr std::uint64_t kInARow = 3;  // one or two are bad luck
constexpr std::uint64_t kShare = 4;
constexpr double kTogetherS = 1;
// Refusals are too much where there are three for each good answer. One of four servers behind an
// address that refuses everything is a matter of the window, and no reason to leave all alone.
constexpr std::uint64_t kRefusalsOfGood = 3;
// The last outage is not over where the first answer after its probe is a refusal again. To ask for
// more good answers made more outages, as each begins anew: with two, three times as many where a
// quarter is refused.
constexpr std::uint64_t kFewGood = 1;

// How long the n-th probe waits for its answer: first * 2^n, so that a slow server is heard at
// last.
constexpr double kProbeS = 1;  // the first probe comes after one pause
constexpr double kLongestRetryAfterS =
    86400;  // what a clock can add; the block's deadline is nearer

}  // namespace

std::string summary_of(const ReadError& error) {
  std::string text = error.detail;
  if (error.http_status != 0) text += " (HTTP " + std::to_string(error.http_status) + ")";
  if (!error.request_id.empty()) text += ", request " + error.request_id;
  return text;
}

std::string story_of(const std::string& server, const OutageStory& outage, TimePoint now) {
  std::array<char, 96> text{};
  std::snprintf(text.data(), text.size(), " has been failing for %.1f s and %llu request%s",
                seconds_between(outage.since, now), static_cast<unsigned long long>(outage.failed),
                outage.failed == 1 ? "" : "s");
  std::string story = server + text.data();
  if (outage.last_failure.retry_after_s > 0) {
    std::snprintf(text.data(), text.size(), "; it wants to be left alone for %.0f s",
                  std::floor(outage.last_failure.retry_after_s));
    story += text.data();
  }
  return story;
}

OutageTicket Outage::start(std::uint64_t object) {
  if (is_open_) {
    is_probing_ = true;
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
  failed_in_a_row_ = 0;
  if (ticket.object != 0 && ticket.object != answered_[0])
    answered_ = {ticket.object, answered_[0]};
  const bool is_probe =
      is_open_ && ticket.epoch == epoch_;  // what is older tells of the time before
  if (is_probe) close(now);
}

bool Outage::finish_badly(const OutageTicket& ticket, FailureKind kind, const ReadError& error,
                          std::uint32_t in_flight, TimePoint now, double random) {
  const std::uint64_t object = may_be_of_one_object(error) ? ticket.object : 0;
  if (is_open_ && story_.only_object != object) story_.only_object = 0;
  if (ticket.epoch != epoch_) {
    story_.failed += is_open_;
    return true;
  }
  if (!is_open_) {
    ++failed_in_a_row_;
    failures_.push_back({now, good_, object});
    if (!is_too_much(kind, in_flight, now) && !wants_a_pause(kind, error)) return false;
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

// Three in a row of many in flight are no bad luck where connections break. Where a server refuses
// a few of many they are: of one in ten, once in a thousand answers.
bool Outage::is_too_much(FailureKind kind, std::uint32_t in_flight, TimePoint now) {
  while (seconds_between(failures_.front().at, now) > kTogetherS) failures_.pop_front();
  const std::uint64_t failed = failures_.size();
  const std::uint64_t good = good_ - failures_.front().good_before;
  const std::uint64_t many = std::max(kInARow, in_flight / kShare);
  const bool is_refusal = kind == FailureKind::kThrottle;
  const std::uint64_t in_a_row = is_refusal ? many : kInARow;
  const std::uint64_t most_good = is_refusal ? failed / kRefusalsOfGood : failed * (kShare - 1);
  return failed_in_a_row_ >= in_a_row || (failed >= many && good <= most_good);
}

// A server that refuses one request of many wants fewer at a time, and no pause.
bool Outage::wants_a_pause(FailureKind kind, const ReadError& error) const {
  if (kind != FailureKind::kThrottle) return false;
  const std::uint64_t good = good_ - good_before_epoch_;
  return error.retry_after_s > 0 || good < kFewGood;
}

}  // namespace streamer
