// The pause that a server demands when it refuses a request.
//
// Retry-After has seconds or a date (RFC 9110 §10.2.3). The date is relative to the response's own
// Date, because clocks differ. RateLimit has two numbers for each quota: the requests left (r), and
// the seconds until the quota is full again (t) (draft-ietf-httpapi-ratelimit-headers-08 and
// later). It counts only if Retry-After demands nothing, and only in refusals for too many requests
// (429, 503). A value that cannot be parsed, or that lies in the past, demands no pause.
#pragma once

#include <string>

namespace streamer {

// The values of the headers; empty if the response does not have them.
struct PauseHeaders {
  std::string retry_after;
  std::string rate_limit;
  std::string date;
};

// Returns the seconds; 0 if no pause is demanded. `unix_now_s` is used if the response has no Date.
double demanded_pause_s(int status, const PauseHeaders& headers, double unix_now_s);

}  // namespace streamer
