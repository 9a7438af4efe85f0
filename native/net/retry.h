// Decides which failures are worth another attempt, and for reads how often, and when. Pure.
// Lookups and writes are retried by backends/client/retry.py.
#pragma once

#include <string>

#include "base/read_error.h"

namespace streamer {

// The reaction to a failure. One table in retry.cc maps errors to reactions.
enum class FailureKind : std::uint8_t {
  kTransient,    // the network or the server failed; another attempt may succeed
  kThrottle,     // the server asks for fewer requests
  kWrongAnswer,  // not the requested range; the first one may be the error of a proxy
  kStale,        // the URL or its credentials expired; new ones may work
  kFinal,        // another attempt cannot succeed
};

FailureKind classify(const ReadError& error);

// Whether an answer asks for the same request again; the table is that of `classify`.
bool asks_for_another_attempt(int http_status, std::string storage_code);

// Whether the server may fail for this one object only, for example because of a broken disk (408,
// 500).
bool may_be_of_one_object(const ReadError& error);

// A pause after n others is random between 0 and first * 2^n. This is full jitter, a formula of the
// AWS architecture blog.
struct Pauses {
  double first_s;
  double longest_s;

  // Returns the upper limit of the next pause; `before` is the number of pauses so far.
  double limit_s(int before) const;
};
// A server that refuses or resets connections may work again soon. A server that throttles needs
// more time.
inline constexpr Pauses kAfterFailure{0.05, 5};
inline constexpr Pauses kAfterThrottle{0.25, 10};

struct RetryOptions {
  // Attempts of one block. If a large share of all requests fails, the number of retries is
  // multiplied by the row_factor of its history. Failures that may concern only one object do not
  // get this factor.
  int max_attempts = 8;
  double block_deadline_s = 120;  // counted from the first attempt; no attempt begins later
  Pauses after_failure = kAfterFailure;
  Pauses after_throttle = kAfterThrottle;
  // For a server that never answered in this process: the address may be wrong, or there may be no
  // server.
  int max_attempts_unanswered = 3;
};

// The attempts of a block so far, including the current failure.
struct AttemptHistory {
  int attempts = 0;  // without the attempts that failed in an outage of the server
  int wrong_answers = 0;
  int renewals = 0;                 // attempts after which the credentials or the URL were renewed
  double elapsed_s = 0;             // since the first attempt
  double row_factor = 1;            // Endpoint::row_factor()
  bool has_server_answered = true;  // at any time in this process
};

// Whether the block gets another attempt after `error`.
bool is_worth_another_attempt(const ReadError& error, const AttemptHistory& history,
                              const RetryOptions& options);

// Returns the seconds to wait before the next attempt of a block that failed outside of an outage.
// `random` is uniform in [0, 1). The pause is short: the window already limits the requests in
// flight, so a long pause would only delay this block, and not help the server.
double retry_delay_s(const ReadError& error, int attempts, const RetryOptions& options,
                     double random);

}  // namespace streamer
