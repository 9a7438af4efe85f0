#include "net/retry.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace streamer {
namespace {

ReadError error_of(ErrorCode code, int status = 0, std::string storage_code = {}) {
  ReadError error;
  error.code = code;
  error.http_status = status;
  error.storage_code = std::move(storage_code);
  return error;
}

struct Row {
  ReadError error;
  FailureKind kind;
};

TEST_CASE("every failure is of one kind") {
  const std::vector<Row> rows = {
      {error_of(ErrorCode::kHttpStatus, 408), FailureKind::kTransient},
      {error_of(ErrorCode::kHttpStatus, 500), FailureKind::kTransient},
      {error_of(ErrorCode::kHttpStatus, 502), FailureKind::kTransient},
      {error_of(ErrorCode::kHttpStatus, 504), FailureKind::kTransient},
      {error_of(ErrorCode::kHttpStatus, 429), FailureKind::kThrottle},
      {error_of(ErrorCode::kHttpStatus, 503), FailureKind::kThrottle},
      {error_of(ErrorCode::kHttpStatus, 200, "InternalError"), FailureKind::kTransient},
      {error_of(ErrorCode::kHttpStatus, 200, "SlowDown"), FailureKind::kThrottle},
      {error_of(ErrorCode::kHttpStatus, 200, "SomethingElse"), FailureKind::kFinal},
      {error_of(ErrorCode::kHttpStatus, 400, "RequestTimeout"), FailureKind::kTransient},
      {error_of(ErrorCode::kHttpStatus, 409, "OperationAborted"), FailureKind::kTransient},
      {error_of(ErrorCode::kHttpStatus, 409, "ConditionalRequestConflict"),
       FailureKind::kTransient},
      {error_of(ErrorCode::kHttpStatus, 409, "BucketNotEmpty"), FailureKind::kFinal},
      {error_of(ErrorCode::kHttpStatus, 414), FailureKind::kStale},
      {error_of(ErrorCode::kAccessDenied, 403, "AccessDenied"), FailureKind::kStale},
      {error_of(ErrorCode::kHttpStatus, 400), FailureKind::kFinal},
      {error_of(ErrorCode::kHttpStatus, 405), FailureKind::kFinal},
      {error_of(ErrorCode::kHttpStatus, 501), FailureKind::kFinal},
      {error_of(ErrorCode::kConnect), FailureKind::kTransient},
      {error_of(ErrorCode::kResolve), FailureKind::kTransient},
      {error_of(ErrorCode::kUnknownHost), FailureKind::kFinal},
      {error_of(ErrorCode::kTimeout), FailureKind::kTransient},
      {error_of(ErrorCode::kRangeResponse, 206), FailureKind::kWrongAnswer},
      {error_of(ErrorCode::kChecksum, 206), FailureKind::kWrongAnswer},
      {error_of(ErrorCode::kEndlessHeaders, 206), FailureKind::kWrongAnswer},
      {error_of(ErrorCode::kCredentialsExpired, 403), FailureKind::kStale},
      {error_of(ErrorCode::kCredentials, 401), FailureKind::kStale},
      {error_of(ErrorCode::kClockSkew, 403), FailureKind::kStale},
      {error_of(ErrorCode::kRedirect, 302), FailureKind::kStale},
      {error_of(ErrorCode::kCredentials, 403), FailureKind::kFinal},
      {error_of(ErrorCode::kAccessDenied, 403), FailureKind::kFinal},
      {error_of(ErrorCode::kNotFound, 404), FailureKind::kFinal},
      {error_of(ErrorCode::kChanged, 412), FailureKind::kFinal},
      {error_of(ErrorCode::kTruncated, 416), FailureKind::kFinal},
      {error_of(ErrorCode::kTls), FailureKind::kFinal},
      {error_of(ErrorCode::kOutOfMemory), FailureKind::kFinal},
      {error_of(ErrorCode::kIo), FailureKind::kFinal},
  };
  for (const Row& row : rows) {
    CAPTURE(static_cast<int>(row.error.code));
    CAPTURE(row.error.http_status);
    CHECK(classify(row.error) == row.kind);
  }
}

bool is_tried_again(const ReadError& error, const AttemptHistory& history) {
  return is_worth_another_attempt(error, history, RetryOptions{});
}

TEST_CASE("attempts and time are bounded, whatever the failure") {
  const ReadError lost = error_of(ErrorCode::kConnect);
  CHECK(is_tried_again(lost, {.attempts = 7, .elapsed_s = 119}));
  CHECK_FALSE(is_tried_again(lost, {.attempts = 8}));
  CHECK_FALSE(is_tried_again(lost, {.attempts = 1, .elapsed_s = 120}));
}

TEST_CASE("a block may fail more often if its server fails many of all requests at random") {
  const ReadError refused = error_of(ErrorCode::kHttpStatus, 503);
  CHECK(is_tried_again(refused, {.attempts = 28, .row_factor = 4}));
  CHECK_FALSE(is_tried_again(refused, {.attempts = 29, .row_factor = 4}));
  const ReadError wrong = error_of(ErrorCode::kRangeResponse, 206);
  CHECK_FALSE(is_tried_again(wrong, {.attempts = 8, .row_factor = 4}));
  CHECK_FALSE(is_worth_another_attempt(refused, {.attempts = 1, .row_factor = 16},
                                       RetryOptions{.max_attempts = 1}));
}

TEST_CASE("a server that asks for a longer pause than the time left is not waited for") {
  ReadError refused = error_of(ErrorCode::kHttpStatus, 429);
  refused.retry_after_s = 100;
  CHECK(is_tried_again(refused, {.attempts = 1, .elapsed_s = 19}));
  CHECK_FALSE(is_tried_again(refused, {.attempts = 1, .elapsed_s = 20}));
}

TEST_CASE("a server that never answered gets three attempts") {
  const ReadError refused = error_of(ErrorCode::kConnect);
  CHECK(is_tried_again(refused, {.attempts = 2, .has_server_answered = false}));
  CHECK_FALSE(is_tried_again(refused, {.attempts = 3, .has_server_answered = false}));
  CHECK(is_tried_again(refused, {.attempts = 3, .has_server_answered = true}));
}

TEST_CASE("a second wrong answer is final, whatever other failures happen in between") {
  const ReadError wrong = error_of(ErrorCode::kRangeResponse, 206);
  CHECK(is_tried_again(wrong, {.attempts = 5, .wrong_answers = 1}));
  CHECK_FALSE(is_tried_again(wrong, {.attempts = 2, .wrong_answers = 2}));
}

TEST_CASE("after a redirect, a refusal may mean that the signature of the new URL has expired") {
  ReadError error = error_of(ErrorCode::kAccessDenied, 403);
  error.is_at_redirect = true;
  CHECK(classify(error) == FailureKind::kStale);
  CHECK(is_tried_again(error, {.attempts = 3, .renewals = 3}));
}

TEST_CASE("a redirect, a 401, a wrong clock or a refused URL allows one renewal, an expiry any") {
  for (const ReadError& error :
       {error_of(ErrorCode::kRedirect, 307), error_of(ErrorCode::kCredentials, 401),
        error_of(ErrorCode::kClockSkew, 403), error_of(ErrorCode::kHttpStatus, 414),
        error_of(ErrorCode::kAccessDenied, 403, "AccessDenied")}) {
    CHECK(is_tried_again(error, {.attempts = 1, .renewals = 1}));
    CHECK_FALSE(is_tried_again(error, {.attempts = 2, .renewals = 2}));
  }
  CHECK(is_tried_again(error_of(ErrorCode::kCredentialsExpired, 403),
                       {.attempts = 3, .renewals = 3}));
}

TEST_CASE("pauses double up to half a second, with full jitter") {
  const RetryOptions options;
  const ReadError lost = error_of(ErrorCode::kConnect);
  CHECK(retry_delay_s(lost, 1, options, 0.999) == doctest::Approx(0.05).epsilon(0.01));
  CHECK(retry_delay_s(lost, 4, options, 0.5) == doctest::Approx(0.2));
  CHECK(retry_delay_s(lost, 30, options, 0.999) == doctest::Approx(0.5).epsilon(0.01));
  CHECK(retry_delay_s(lost, 3, options, 0.0) == 0.0);
}

TEST_CASE("a failure that may concern one object only has pauses of up to five seconds") {
  const ReadError failed = error_of(ErrorCode::kHttpStatus, 500);
  CHECK(retry_delay_s(failed, 30, RetryOptions{}, 0.999) == doctest::Approx(5).epsilon(0.01));
}

TEST_CASE("a single refused block waits half a second at most") {
  const RetryOptions options;
  const ReadError refused = error_of(ErrorCode::kHttpStatus, 503);
  CHECK(retry_delay_s(refused, 1, options, 0.999) == doctest::Approx(0.25).epsilon(0.01));
  CHECK(retry_delay_s(refused, 3, options, 0.5) == doctest::Approx(0.25));
  CHECK(retry_delay_s(refused, 30, options, 0.999) == doctest::Approx(0.5).epsilon(0.01));
}

TEST_CASE("Retry-After is obeyed, up to a limit") {
  const RetryOptions options;
  ReadError error = error_of(ErrorCode::kHttpStatus, 500);
  error.retry_after_s = 7;
  CHECK(retry_delay_s(error, 1, options, 0.5) == 7.0);
  error.retry_after_s = 86400;
  CHECK(retry_delay_s(error, 1, options, 0.5) == 120.0);
}

}  // namespace
}  // namespace streamer
