#include "net/retry.h"

#include <doctest/doctest.h>

namespace streamer {
namespace {

ReadError error_of(ErrorCode code, int status = 0, int attempts = 1) {
  ReadError error;
  error.code = code;
  error.http_status = status;
  error.attempts = attempts;
  return error;
}

TEST_CASE("transient statuses are tried again and permanent ones are not") {
  for (const int status : {408, 429, 500, 502, 503, 504}) {
    CHECK_MESSAGE(is_retryable(error_of(ErrorCode::kHttpStatus, status)), status);
  }
  for (const int status : {400, 405, 409, 411, 501}) {
    CHECK_MESSAGE(!is_retryable(error_of(ErrorCode::kHttpStatus, status)), status);
  }
}

TEST_CASE("a lost connection is tried again, a refusal is final") {
  CHECK(is_retryable(error_of(ErrorCode::kConnect)));
  CHECK(is_retryable(error_of(ErrorCode::kTimeout)));
  for (const ErrorCode code :
       {ErrorCode::kNotFound, ErrorCode::kAccessDenied, ErrorCode::kCredentials,
        ErrorCode::kChanged, ErrorCode::kTls, ErrorCode::kRedirect, ErrorCode::kTruncated,
        ErrorCode::kCredentialsExpired}) {
    CHECK_FALSE(is_retryable(error_of(code)));
  }
}

TEST_CASE("a wrong range is tried once more, then final") {
  CHECK(is_retryable(error_of(ErrorCode::kRangeResponse, 206, 1)));
  CHECK_FALSE(is_retryable(error_of(ErrorCode::kRangeResponse, 206, 2)));
}

TEST_CASE("delays double up to the cap, with full jitter") {
  const RetryOptions options;
  CHECK(retry_delay_s(error_of(ErrorCode::kConnect, 0, 1), options, 0.999) ==
        doctest::Approx(0.05).epsilon(0.01));
  CHECK(retry_delay_s(error_of(ErrorCode::kConnect, 0, 4), options, 0.5) == doctest::Approx(0.2));
  CHECK(retry_delay_s(error_of(ErrorCode::kConnect, 0, 30), options, 0.999) <= 20.0);
  CHECK(retry_delay_s(error_of(ErrorCode::kConnect, 0, 3), options, 0.0) == 0.0);
}

TEST_CASE("a throttled request waits longer, and Retry-After is obeyed") {
  const RetryOptions options;
  ReadError error = error_of(ErrorCode::kHttpStatus, 503, 1);
  CHECK(retry_delay_s(error, options, 0.5) == doctest::Approx(0.5));
  error.retry_after_s = 7;
  CHECK(retry_delay_s(error, options, 0.5) == 7.0);
}

}  // namespace
}  // namespace streamer
