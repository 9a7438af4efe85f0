// Which failures are worth another attempt, and when. Pure.
#pragma once

#include "base/read_error.h"

namespace streamer {

struct RetryOptions {
  int max_attempts = 8;
  double base_delay_s = 0.05;  // full jitter over 50 ms * 2^n: the AWS architecture blog's formula
  double throttle_delay_s = 1.0;  // after 429 and 503 the server has asked for patience
  double longest_delay_s = 20.0;
};

// Transient failures of the network or the server. An expired credential is not among them: it
// needs a new signature first.
bool is_retryable(const ReadError& error);

// Failures that a new URL or new credentials may cure: expired ones, and, once, a 401 (a token that
// was revoked early) or a redirect (the place the URL once led to has moved).
bool is_renewable(const ReadError& error);

// Seconds to wait before attempt `error.attempts + 1`; `random` is uniform in [0, 1).
double retry_delay_s(const ReadError& error, const RetryOptions& options, double random);

}  // namespace streamer
