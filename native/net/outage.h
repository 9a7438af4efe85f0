// When a server that fails as a whole is left alone, and when it is asked again.
//
// An outage is one event, however many requests it hits. It begins when three requests in a row
// fail, or within a second as many as a quarter of those in flight, and no fewer than one in four.
// Throttles (429, 503) begin one if they are three in four. A single throttle begins one if it
// names a time (Retry-After), or if it is the first answer after the last outage. Other failures
// are a matter of the window (request_window.h). Of a server that fails a large share of all
// requests anyway, all these numbers grow until chance does not explain them (failure_share.h).
// While it lasts nothing is sent but one probe at a time, after pauses that grow, with full jitter.
// The first probe that is answered well ends it. What was under way at its beginning and fails too
// belongs to it, whenever that comes to light. (docs/reliability.md, "Outages")
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

// When a request was started, as far as outages are concerned; it is finished with this.
struct OutageTicket {
  std::uint32_t epoch = 0;
  std::uint64_t object = 0;     // that was asked for, by its number in the process; 0: not told
  std::uint32_t in_flight = 1;  // when it was sent, itself included
  bool is_probe = false;
  // A probe whose answer has not begun by then is given up for the next one, on a new connection:
  // behind an address with several servers that may be another.
  double first_byte_s = std::numeric_limits<double>::infinity();
};

// What happened at one endpoint since its process first used it.
struct OutageTotals {
  std::uint64_t outages = 0;
  std::uint64_t probes = 0;
  double waited_s = 0;  // while there was an outage, the present one included
};

// The outage there is.
struct OutageStory {
  TimePoint since{};
  std::uint64_t probes = 0;
  std::uint64_t failed = 0;   // requests, probes among them
  std::string first_failure;  // in one sentence
  ReadError last_failure;
  std::uint64_t only_object =
      0;  // all failures are of this one, and may be its fault; 0: of others, too
};

class Outage {
 public:
  // Whether there is one.
  bool is_open() const { return is_open_; }
  bool may_probe(TimePoint now) const {
    return (!is_probing_ || now >= probe_lost_at_) && now >= probe_at_;
  }
  TimePoint probe_at() const { return probe_at_; }

  // A request is sent; while there is an outage only where may_probe().
  OutageTicket start(std::uint64_t object = 0);
  // From then on another probe may be sent beside the last one: its sender may not keep its time.
  void lose_probe_at(TimePoint when) { probe_lost_at_ = when; }
  // It was answered well, or by a server that works.
  void finish_well(const OutageTicket& ticket, TimePoint now);
  // It failed, as `kind` says, while `in_flight` were under way, itself included. True when that is
  // no fault of this one request: it belongs to an outage. `random` is uniform in [0, 1).
  // `is_least`: fewer requests at a time have helped, and there can be no fewer.
  bool finish_badly(const OutageTicket& ticket, FailureKind kind, const ReadError& error,
                    std::uint32_t in_flight, TimePoint now, double random, bool is_least = false);
  // Nobody waits for it any more.
  void cancel(const OutageTicket& ticket);

  // Whether the failures of an object are its own: others are answered, and none of them fails.
  bool is_fault_of(std::uint64_t object) const;

  // How many times more failures of one request than usual are chance.
  double row_factor() const { return share_.row_factor(); }

  // Only while there is one.
  const OutageStory& story() const { return story_; }
  OutageTotals totals(TimePoint now) const;

 private:
  void open(TimePoint now);
  void close(TimePoint now);
  void record_share();
  void pause(FailureKind kind, double retry_after_s, TimePoint now, double random);
  bool is_too_much(FailureKind kind, std::uint32_t in_flight, TimePoint now);
  bool wants_a_pause(FailureKind kind, const ReadError& error) const;

  std::uint32_t epoch_ = 0;  // a new one when an outage begins, and when it ends
  bool is_open_ = false;
  bool is_probing_ = false;
  int pauses_ = 0;  // of this outage
  TimePoint probe_at_{};
  TimePoint probe_lost_at_ = TimePoint::max();
  struct Failed {
    TimePoint at;
    std::uint64_t good_before;  // good_ at that time
    std::uint64_t object;       // whose fault it may be, or 0
  };
  std::uint64_t good_ = 0;               // requests that were answered well
  std::uint64_t good_before_epoch_ = 0;  // of these, up to the end of the last outage
  std::uint64_t failed_in_a_row_ = 0;
  FailureShare share_;           // outside of outages; a row of failures counts once it has ended
  std::deque<Failed> failures_;  // of the last second, in this epoch
  std::array<std::uint64_t, 2> answered_{};  // the last two objects that were answered well, or 0
  OutageStory story_;
  OutageTotals ended_;
};

// In one sentence: how long the server has been away, and how many requests failed meanwhile.
std::string story_of(const std::string& server, const OutageStory& outage, TimePoint now);

// For the message of a later failure: what happened, without its bytes and attempts.
std::string summary_of(const ReadError& error);

}  // namespace streamer
