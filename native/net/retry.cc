#include "net/retry.h"

#include <algorithm>
#include <cmath>

namespace streamer {
namespace {

bool is_throttle(const ReadError& error) {
  return error.http_status == 429 || error.http_status == 503;
}

}  // namespace

bool is_retryable(const ReadError& error) {
  switch (error.code) {
    case ErrorCode::kConnect:
    case ErrorCode::kTimeout:
      return true;
    case ErrorCode::kRangeResponse:
      return error.attempts < 2;  // a proxy may err once; twice is what this server does
    case ErrorCode::kHttpStatus: {
      const int status = error.http_status;
      return status == 408 || status == 429 || status == 500 || status == 502 || status == 503 ||
             status == 504;
    }
    default:
      return false;
  }
}

bool is_renewable(const ReadError& error) {
  if (error.code == ErrorCode::kCredentialsExpired) return true;
  const bool is_first = error.attempts < 2;
  return is_first && (error.code == ErrorCode::kRedirect || error.http_status == 401);
}

double retry_delay_s(const ReadError& error, const RetryOptions& options, double random) {
  const double base = is_throttle(error) ? options.throttle_delay_s : options.base_delay_s;
  const double grown = base * std::pow(2.0, std::max(0, error.attempts - 1));
  const double jittered = random * std::min(grown, options.longest_delay_s);
  return std::clamp(std::max(jittered, error.retry_after_s), 0.0, 120.0);
}

}  // namespace streamer
