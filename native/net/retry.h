// Which failures are worth another attempt, how often, and when. Pure.
#pragma once

#include "base/read_error.h"

namespace streamer {

// What a failure calls for. One table, in retry.cc.
enum class FailureKind : std::uint8_t {
  kTransient,    // the network or the server failed; another attempt may not
  kThrottle,     // the server asks for patience
  kWrongAnswer,  // not the range asked for: a proxy may err once, twice is what
                 // this server does
  kStale,        // the URL or its credentials are no longer good; new ones may be
  kFinal,        // another attempt cannot help
};

FailureKind classify(const ReadError& error);

// Whether the server may fail for one object alone, for example because a disk is broken: 408, 500.
bool may_be_of_one_object(const ReadError& error);

// The n-th pause is drawn from 0 to first * 2^n: full jitter, the AWS architecture blog's formula.
struct Pauses {
  double first_s;
  double longest_s;

  // What the pause is drawn from; `before` is how many there were.
  double limit_s(int before) const;
};
// A server that refuses or resets may be back at once; one that throttles said that it wants less.
inline constexpr Pauses kAfterFailure{0.05, 5};
inline constexpr Pauses kAfterThrottle{0.25, 10};

struct RetryOptions {
  // Of a block. If a large share of all requests fails, its retries are multiplied by the
  // row_factor of its history; not those of failures that may be of one object.
  int max_attempts = 8;
  double block_deadline_s = 120;  // from the first attempt: no further one begins after it
  Pauses after_failure = kAfterFailure;
  Pauses after_throttle = kAfterThrottle;
  // A server that never answered in this process: a wrong address, or nobody is there.
  int max_attempts_unanswered = 3;
};

// What a block has been through, the failure under judgement included.
struct AttemptHistory {
  int attempts = 0;  // those that fell into an outage of the server not counted
  int wrong_answers = 0;
  int renewals = 0;       // attempts after which new credentials or a new URL were asked for
  double elapsed_s = 0;   // since the first attempt
  double row_factor = 1;  // Endpoint::row_factor()
  bool has_server_answered = true;  // ever, in this process
};

// Whether the block is tried again after `error`.
bool is_worth_another_attempt(const ReadError& error, const AttemptHistory& history,
                              const RetryOptions& options);

// Seconds to wait before the next attempt at a block whose failure is no outage of the server;
// `random` is uniform in [0, 1). Others are answered meanwhile, so a long pause spares the server
// nothing, as how many are in flight is the window's matter; it only makes this block the last.
double retry_delay_s(const ReadError& error, int attempts, const RetryOptions& options,
                     double random);

}  // namespace streamer
