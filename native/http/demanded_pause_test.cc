#include "http/demanded_pause.h"

#include <doctest/doctest.h>

namespace streamer {
namespace {

constexpr double kNowS = 1'795'000'000;  // by this machine's clock
constexpr const char* kDate = "Thu, 26 Nov 2026 12:00:00 GMT";

double pause(const std::string& retry_after, const std::string& rate_limit = {},
             const std::string& date = kDate, int status = 429) {
  return demanded_pause_s(status, {retry_after, rate_limit, date}, kNowS);
}

TEST_CASE("Retry-After has seconds, or a date relative to the Date of the response") {
  CHECK(pause("7") == 7);
  CHECK(pause("Thu, 26 Nov 2026 12:00:09 GMT") == 9);
  CHECK(pause("Thursday, 26-Nov-26 12:00:09 GMT") == 9);
  CHECK(pause("Thu Nov 26 12:00:09 2026") == 9);
  CHECK(pause("Thu, 26 Nov 2026 12:00:09 GMT", "", kDate, 502) == 9);
}

TEST_CASE("without a Date, the clock of this machine is used") {
  CHECK(pause("Wed, 18 Nov 2026 11:06:43 GMT", "", "") == 3);
}

TEST_CASE("this machine's clock is used if it agrees with the Date, which has whole seconds") {
  const auto pause_at = [](double unix_now_s) {
    return demanded_pause_s(
        429, {"Wed, 18 Nov 2026 11:06:50 GMT", "", "Wed, 18 Nov 2026 11:06:40 GMT"}, unix_now_s);
  };
  CHECK(pause_at(kNowS + 0.25) == 9.75);
  CHECK(pause_at(kNowS + 1.5) == 8.5);
  CHECK(pause_at(kNowS + 3600) == 10);
  CHECK(pause_at(kNowS - 1) == 10);
}

TEST_CASE("a value that cannot be parsed, or lies in the past, demands no pause") {
  for (const char* text : {"", "soon", "-5", "1.5", "7 s", "Mon, 01 Jan 2001 00:00:00 GMT",
                           "::", "\"api\";r=0", "99999999999999999999999"}) {
    CHECK_MESSAGE(pause(text) == 0, text);
  }
}

TEST_CASE("RateLimit has the seconds until an exhausted quota is full again") {
  CHECK(pause("", "\"api\";r=0;t=6") == 6);
  CHECK(pause("", "\"api\"; r=0; t=6; pk=:c3Rh:") == 6);
  CHECK(pause("", "\"a\";r=0;t=6, \"b\";r=0;t=9, \"c\";r=5;t=300") == 9);
  CHECK(pause("", "\"a;r=0;t=99, \\\"\";r=0;t=6") == 6);
  CHECK(pause("", "\"api\";r=0;t=6", kDate, 503) == 6);
}

TEST_CASE("RateLimit is ignored without an exhausted quota, its time, or status 429 or 503") {
  for (const char* text : {"", "\"api\";r=1;t=6", "\"api\";t=6", "\"api\";r=0", "\"api\";r=0;t=x",
                           "\"api\";r=0;t=-1", "limit=1, remaining=0, reset=6", "\"r=0;t=6"}) {
    CHECK_MESSAGE(pause("", text) == 0, text);
  }
  CHECK(pause("", "\"api\";r=0;t=6", kDate, 500) == 0);
}

TEST_CASE("Retry-After takes precedence if both headers are present") {
  CHECK(pause("2", "\"api\";r=0;t=6") == 2);
  CHECK(pause("soon", "\"api\";r=0;t=6") == 6);
}

}  // namespace
}  // namespace streamer
