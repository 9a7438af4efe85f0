#include "net/retry.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "base/descriptors.h"

namespace streamer {
namespace {

constexpr double kLongestAloneS = 0.5;       // longest pause if the server answers other requests
constexpr double kLongestRetryAfterS = 120;  // no block has a later deadline

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// Codes of S3, Azure and GCS that ask for another attempt. S3 may send them in a document with
// status 200, or with a status that is final without them: 400, 403, 409.
FailureKind kind_of_storage_code(std::string_view code) {
  if (is_one_of(code, {"SlowDown", "ServiceUnavailable", "Throttling", "ThrottlingException",
                       "RequestLimitExceeded", "BandwidthLimitExceeded", "TooManyRequests",
                       "ServerBusy", "rateLimitExceeded", "userRateLimitExceeded"})) {
    return FailureKind::kThrottle;
  }
  if (is_one_of(code, {"InternalError", "RequestTimeout", "OperationTimedOut", "backendError",
                       // Another request about the same name was under way.
                       "ConditionalRequestConflict", "OperationAborted", "PriorRequestNotComplete",
                       // The body of an upload was damaged or cut on its way.
                       "BadDigest", "IncompleteBody", "XAmzContentChecksumMismatch", "Md5Mismatch",
                       "Crc64Mismatch"})) {
    return FailureKind::kTransient;
  }
  return FailureKind::kFinal;
}

FailureKind kind_of_status(const ReadError& error) {
  switch (error.http_status) {
    case 429:
    case 503:
      return FailureKind::kThrottle;
    case 408:
    case 500:
    case 502:
    case 504:
      return FailureKind::kTransient;
    default:
      return kind_of_storage_code(error.storage_code);
  }
}

}  // namespace

FailureKind classify(const ReadError& error) {
  switch (error.code) {
    case ErrorCode::kConnect:
    case ErrorCode::kResolve:
    case ErrorCode::kTimeout:
      return FailureKind::kTransient;
    case ErrorCode::kHttpStatus:  // 414: the URL with its signature is too long
      return error.http_status == 414 ? FailureKind::kStale : kind_of_status(error);
    case ErrorCode::kIo:  // descriptors become free again; other errors persist
      return means_no_descriptor(error.os_error) ? FailureKind::kTransient : FailureKind::kFinal;
    case ErrorCode::kRangeResponse:
    case ErrorCode::kEndlessHeaders:
    case ErrorCode::kChecksum:  // the checksum of a response
      return FailureKind::kWrongAnswer;
    case ErrorCode::kCredentialsExpired:
    case ErrorCode::kClockSkew:
    case ErrorCode::kRedirect:
      return FailureKind::kStale;
    case ErrorCode::kCredentials:  // 401: the token was revoked early
      return error.http_status == 401 ? FailureKind::kStale : FailureKind::kFinal;
    // After a redirect, some servers report an expired signature as a denied access. "AccessDenied"
    // is a code of S3, whose policies may forbid signatures in URLs. Then one in headers works.
    case ErrorCode::kAccessDenied:
      return error.is_at_redirect || error.storage_code == "AccessDenied" ? FailureKind::kStale
                                                                          : FailureKind::kFinal;
    default:
      return FailureKind::kFinal;
  }
}

bool asks_for_another_attempt(int http_status, std::string storage_code) {
  ReadError error;
  error.http_status = http_status;
  error.storage_code = std::move(storage_code);
  return kind_of_status(error) != FailureKind::kFinal;
}

bool may_be_of_one_object(const ReadError& error) {
  const bool is_status = error.http_status == 408 || error.http_status == 500;
  const bool is_document = kind_of_storage_code(error.storage_code) == FailureKind::kTransient;
  return error.code == ErrorCode::kHttpStatus && (is_status || is_document);
}

double Pauses::limit_s(int before) const {
  return std::min(first_s * std::pow(2.0, std::max(0, before)), longest_s);
}

bool is_worth_another_attempt(const ReadError& error, const AttemptHistory& history,
                              const RetryOptions& options) {
  const int most = history.has_server_answered
                       ? options.max_attempts
                       : std::min(options.max_attempts, options.max_attempts_unanswered);
  const FailureKind kind = classify(error);
  const bool may_be_chance = (kind == FailureKind::kTransient || kind == FailureKind::kThrottle) &&
                             !may_be_of_one_object(error);  // an object's failures are no chance
  const double factor = may_be_chance ? history.row_factor : 1;
  if (history.attempts - 1 >= (most - 1) * factor) return false;
  // If the server's Retry-After ends after the deadline, waiting is pointless.
  if (history.elapsed_s + error.retry_after_s >= options.block_deadline_s) return false;
  switch (kind) {
    case FailureKind::kTransient:
    case FailureKind::kThrottle:
      return true;
    case FailureKind::kWrongAnswer:
      return history.wrong_answers < 2;
    // Tokens and redirects may expire again. All other causes need only one renewal.
    case FailureKind::kStale:
      return error.code == ErrorCode::kCredentialsExpired ||
             (error.code == ErrorCode::kAccessDenied && error.is_at_redirect) ||
             history.renewals < 2;
    case FailureKind::kFinal:
      return false;
  }
  return false;
}

double retry_delay_s(const ReadError& error, int attempts, const RetryOptions& options,
                     double random) {
  const bool is_throttled = classify(error) == FailureKind::kThrottle;
  const Pauses& pauses = is_throttled ? options.after_throttle : options.after_failure;
  double longest_s = pauses.limit_s(attempts - 1);
  if (!may_be_of_one_object(error)) longest_s = std::min(longest_s, kLongestAloneS);
  const double jittered = random * longest_s;
  return std::clamp(std::max(jittered, error.retry_after_s), 0.0, kLongestRetryAfterS);
}

}  // namespace streamer
