// Decides when requests to a server that fails as a whole stop, and when the server is probed.
//
// An outage is one event, however many requests it affects. It begins if three requests in a row
// fail. It also begins if the failures of one second are at least a quarter of the requests in
// flight, and at least a quarter of the responses. For throttles (429, 503), the share of the
// responses must be three quarters. A single throttle begins an outage if it names a time
// (Retry-After), or if it is the first response after the last outage. Other failures only shrink
// the window (request_window.h). If a server fails a large share of all requests anyway, all these
// limits grow until chance does not explain the failures (failure_share.h).
//
// During an outage only one probe at a time is sent, after growing pauses with full jitter. The
// first probe with a good response ends the outage. Requests that were in flight when the outage
// began belong to it if they fail, whenever the failure is noticed. (docs/reliability.md,
// "Outages")
//
// Pure: times and random numbers are arguments. Not thread-safe; Endpoint calls it under its lock.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <limits>
#include <string>

#include "base/clock.h"
#include "base/read_error.h"
#include "net/failure_share.h"
#include "net/retry.h"

namespace streamer {

// Identifies a started request. Pass it when the request ends.
struct OutageTicket {
  std::uint32_t epoch = 0;
  std::uint64_t object = 0;     // number of the requested object in the process; 0: unknown
  std::uint32_t in_flight = 1;  // when this request was sent, itself included
  bool is_probe = false;
  // If the response to a probe has not begun within this time, the next probe replaces it. The next
  // probe uses a new connection, which may reach another server behind the same address.
  double first_byte_s = std::numeric_limits<double>::infinity();
};

// The outages, probes and waiting time of one endpoint since the process first used it.
struct OutageTotals {
  std::uint64_t outages = 0;
  std::uint64_t probes = 0;
  double waited_s = 0;  // duration of all outages, including the current one
};

// The current outage.
struct OutageRecord {
  TimePoint since{};
  std::uint64_t probes = 0;
  std::uint64_t failed = 0;   // number of failed requests, including probes
  std::string first_failure;  // in one sentence
  ReadError last_failure;
  // If all failures are of one object, which may be their cause: the number of that object.
  // Otherwise 0.
  std::uint64_t only_object = 0;
};

class Outage {
 public:
  // Whether there is an outage now.
  bool is_open() const { return is_open_; }
  bool may_probe(TimePoint now) const {
    return (!is_probing_ || now >= probe_lost_at_) && now >= probe_at_;
  }
  TimePoint probe_at() const { return probe_at_; }

  // Starts a request. During an outage, call it only if may_probe().
  OutageTicket start(std::uint64_t object = 0);
  // After `when`, another probe may be sent in addition to the last probe, whose sender may miss
  // its deadline.
  void lose_probe_at(TimePoint when) { probe_lost_at_ = when; }
  // Records that the request succeeded, or that it failed although the server works.
  void finish_well(const OutageTicket& ticket, TimePoint now);
  // Records a failure of `kind`, while `in_flight` requests were under way, itself included.
  // Returns true if the failure belongs to an outage and is not the fault of this request. `random`
  // is uniform in [0, 1). `is_least`: fewer requests at a time have helped, but the number cannot
  // be lowered further.
  bool finish_badly(const OutageTicket& ticket, FailureKind kind, const ReadError& error,
                    std::uint32_t in_flight, TimePoint now, double random, bool is_least = false);
  // Records that the request was abandoned.
  void cancel(const OutageTicket& ticket);

  // Whether the object itself causes its failures: requests for other objects are answered and do
  // not fail.
  bool is_fault_of(std::uint64_t object) const;

  // Returns by which factor more failures of one request than usual can still be chance
  // (failure_share.h).
  double row_factor() const { return share_.row_factor(); }

  // Returns the current outage. Only valid if is_open().
  const OutageRecord& story() const { return story_; }
  OutageTotals totals(TimePoint now) const;

 private:
  void open(TimePoint now);
  void close(TimePoint now);
  void record_share();
  void pause(FailureKind kind, double retry_after_s, TimePoint now, double random);
  bool is_too_much(FailureKind kind, std::uint32_t in_flight, TimePoint now);
  bool wants_a_pause(FailureKind kind, const ReadError& error) const;

  std::uint32_t epoch_ = 0;  // incremented when an outage begins and when it ends
  bool is_open_ = false;
  bool is_probing_ = false;
  int pauses_ = 0;  // number of pauses in this outage
  TimePoint probe_at_{};
  TimePoint probe_lost_at_ = TimePoint::max();
  struct Failed {
    TimePoint at;
    std::uint64_t good_before;  // good_ at that time
    std::uint64_t object;       // the object that may be the cause, or 0
  };
  std::uint64_t good_ = 0;               // requests that succeeded
  std::uint64_t good_before_epoch_ = 0;  // the part of good_ before the end of the last outage
  std::uint64_t failed_in_a_row_ = 0;
  // Records requests outside of outages. A row of failures is recorded when it ends.
  FailureShare share_;
  std::deque<Failed> failures_;              // failures of the last second, in this epoch
  std::array<std::uint64_t, 2> answered_{};  // the last two objects with a good response, or 0
  OutageRecord story_;
  OutageTotals ended_;
};

// Returns one sentence that says how long the server has been failing, and how many requests failed
// meanwhile.
std::string description_of(const std::string& server, const OutageRecord& outage, TimePoint now);

// Returns a description of the failure, without bytes and attempts, for the message of a later
// failure.
std::string summary_of(const ReadError& error);

}  // namespace streamer
