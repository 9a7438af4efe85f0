#include "net/endpoint.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

namespace streamer {
namespace {

const TimePoint kNow = Clock::now();

ReadError refused() { return error_of(ErrorCode::kConnect, "refused"); }

ReadError throttled() {
  ReadError error = error_of(ErrorCode::kHttpStatus, "slow down");
  error.http_status = 503;
  return error;
}

TEST_CASE("an endpoint is the scheme, host and port of a URL, and nothing else") {
  CHECK(endpoint_key("https://Host:9000/bucket/key?X-Amz-Signature=abc") == "https://host:9000");
  CHECK(endpoint_key("http://user:secret@host/a@b") == "http://host");
  CHECK(endpoint_key("http://[::1]:80?x") == "http://[::1]:80");
  CHECK(endpoint_key("host/path") == "host");
}

// Fails enough requests to begin an outage.
void throttle(Endpoint& endpoint) {
  for (int i = 0; i < 3; ++i) endpoint.finish_badly(*endpoint.try_start(kNow), throttled(), kNow);
}

TEST_CASE("loads of one server share its endpoint, and afterwards only the answer is remembered") {
  auto one = Endpoint::of("http://shared/a");
  CHECK(Endpoint::of("http://shared/b?c") == one);
  CHECK(Endpoint::of("http://shared:81/a") != one);
  CHECK_FALSE(one->has_answered());
  throttle(*one);
  CHECK(one->outage());
  one.reset();
  CHECK(Endpoint::of("http://shared/a")->has_answered());
  CHECK_FALSE(Endpoint::of("http://shared/a")->outage());
}

TEST_CASE("each route to a server has its own endpoint, with its own answers") {
  Endpoint::of("http://ways/a")->note_answer();
  CHECK(Endpoint::of("http://ways/b")->has_answered());
  const auto by_proxy = Endpoint::of("http://ways/a", "http://proxy:3128");
  CHECK_FALSE(by_proxy->has_answered());
  CHECK(by_proxy->name() == "http://ways");
  CHECK(Endpoint::of("http://ways/a", "http://proxy:3128") == by_proxy);
  // Both routes lead to the same server.
  CHECK(Endpoint::of("http://ways/a")->waiting == by_proxy->waiting);
  setenv("http_proxy", "http://proxy:3128", 1);
  const auto by_environment = Endpoint::of("http://ways/a");
  unsetenv("http_proxy");
  CHECK(by_environment == by_proxy);
}

TEST_CASE("a proxy that refuses a tunnel does not count as an answer of the server") {
  ReadError error = throttled();
  error.is_of_proxy = true;
  Endpoint endpoint("https://behind-a-proxy");
  for (int i = 0; i < 20; ++i) {
    CHECK_FALSE(endpoint.finish_badly(*endpoint.try_start(kNow), error, kNow));
  }
  CHECK_FALSE(endpoint.has_answered());
  CHECK_FALSE(endpoint.outage());
}

TEST_CASE("a server that never answered has no outage, because there may be no server") {
  Endpoint endpoint("http://nowhere");
  for (int i = 0; i < 20; ++i) {
    CHECK_FALSE(endpoint.finish_badly(*endpoint.try_start(kNow), refused(), kNow));
  }
  CHECK_FALSE(endpoint.outage());
}

TEST_CASE("an outage stops all requests but a probe, and halves the requests that follow") {
  Endpoint endpoint("http://server", true);
  std::vector<OutageTicket> started;
  for (int i = 0; i < 16; ++i) started.push_back(*endpoint.try_start(kNow));
  for (const OutageTicket& ticket : started) endpoint.finish_badly(ticket, refused(), kNow);
  CHECK(endpoint.totals(kNow).outages == 1);
  const TimePoint later = after(kNow, 1);
  const auto probe = endpoint.try_start(later);
  REQUIRE(probe);
  CHECK_FALSE(endpoint.try_start(later));
  CHECK(endpoint.closed_until(later).value() > later);
  endpoint.finish_well(*probe, 0.1, true, later);
  int room = 0;
  while (endpoint.try_start(later)) ++room;
  // Half of 14, as two requests failed before the outage began, and one request for the probe.
  CHECK(room == 8);
}

TEST_CASE("a wrong answer to one request begins no outage, and ends a current one") {
  Endpoint endpoint("http://server", true);
  throttle(endpoint);
  const TimePoint later = after(kNow, 1);
  ReadError missing = error_of(ErrorCode::kNotFound, "gone");
  missing.http_status = 404;
  CHECK_FALSE(endpoint.finish_badly(*endpoint.try_start(later), missing, later));
  CHECK_FALSE(endpoint.outage());
}

TEST_CASE("one refusal among many good answers takes little of the window (regression)") {
  Endpoint endpoint("http://server", true);
  for (int i = 0; i < 20; ++i) endpoint.finish_well(*endpoint.try_start(kNow), 0.1, true, kNow);
  std::vector<OutageTicket> started;
  for (int i = 0; i < 100; ++i) started.push_back(*endpoint.try_start(kNow));
  CHECK_FALSE(endpoint.finish_badly(started.back(), throttled(), kNow));
  CHECK_FALSE(endpoint.outage());
  CHECK(endpoint.try_start(kNow));
  CHECK_FALSE(endpoint.try_start(kNow));  // the window is slightly smaller than 100
}

TEST_CASE("a probe that is cancelled makes room for the next one") {
  Endpoint endpoint("http://server", true);
  throttle(endpoint);
  const TimePoint later = after(kNow, 1);
  endpoint.cancel(*endpoint.try_start(later));
  CHECK(endpoint.try_start(later));
}

TEST_CASE("only requests of full size define what is slow") {
  Endpoint endpoint("http://server");
  for (int i = 0; i < 100; ++i) endpoint.finish_well(*endpoint.try_start(kNow), 9, false, kNow);
  CHECK_FALSE(endpoint.slow_after_s());
  for (int i = 0; i < 20; ++i) endpoint.finish_well(*endpoint.try_start(kNow), 0.1, true, kNow);
  CHECK(endpoint.slow_after_s() == 0.1);
}

TEST_CASE("a forked child has none of its parent's requests in flight (regression)") {
  const auto endpoint = Endpoint::of("http://forked/a");
  throttle(*endpoint);
  REQUIRE_FALSE(endpoint->try_start(kNow));
  const pid_t child = fork();
  if (child == 0) _exit(Endpoint::of("http://forked/a")->try_start(kNow) ? 0 : 1);
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

TEST_CASE("after a change of size, old request times are scaled until there are enough new ones") {
  Endpoint endpoint("http://server");
  for (int i = 0; i < 20; ++i) endpoint.finish_well(*endpoint.try_start(kNow), 0.1, true, kNow);
  REQUIRE(endpoint.slow_after_s());
  const std::uint64_t before = endpoint.advice().bytes;
  while (endpoint.advice().bytes == before) {
    CHECK(endpoint.slow_after_s());
    endpoint.record_answer(before, {.first_byte_s = 0.001, .complete_s = 0.1});
  }
  const double times = static_cast<double>(endpoint.advice().bytes) / static_cast<double>(before);
  REQUIRE(endpoint.slow_after_s());
  CHECK(*endpoint.slow_after_s() == doctest::Approx(0.1 * times));
}

TEST_CASE("a server whose quickest answer starts late is distant") {
  Endpoint endpoint("https://store");
  CHECK_FALSE(endpoint.advice().is_distant);
  endpoint.record_answer(1000, {.first_byte_s = 0.03, .complete_s = 0.04});
  CHECK(endpoint.advice().is_distant);
  CHECK(endpoint.advice().bytes == RequestSize::kMostBytes);
  endpoint.record_answer(1000, {.first_byte_s = 0.001, .complete_s = 0.04});
  CHECK_FALSE(endpoint.advice().is_distant);
}

}  // namespace
}  // namespace streamer
