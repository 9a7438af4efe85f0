#include "net/outage.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace streamer {
namespace {

constexpr double kLongest = 0.999;  // the longest pause that full jitter can draw
constexpr std::uint32_t kFew = 4;
const TimePoint kStart = Clock::now();

TimePoint at(double seconds) { return after(kStart, seconds); }

ReadError failure(double retry_after_s = 0) {
  ReadError error = error_of(ErrorCode::kConnect, "refused");
  error.retry_after_s = retry_after_s;
  return error;
}

bool fail(Outage& outage, const OutageTicket& ticket, double seconds,
          std::uint32_t in_flight = kFew, FailureKind kind = FailureKind::kTransient) {
  return outage.finish_badly(ticket, kind, failure(), in_flight, at(seconds), kLongest);
}

Outage open_outage() {
  Outage outage;
  for (int i = 0; i < 3; ++i) fail(outage, outage.start(), 0);
  REQUIRE(outage.is_open());
  return outage;
}

ReadError failed_with(int status) {
  ReadError error = error_of(ErrorCode::kHttpStatus, "the server failed");
  error.http_status = status;
  return error;
}

// Fails requests for each of the objects in turn, until an outage begins.
void fail_for(Outage& outage, const std::vector<std::uint64_t>& objects, int status = 500) {
  for (int i = 0; i < 6; ++i) {
    const std::uint64_t object = objects[static_cast<std::size_t>(i) % objects.size()];
    outage.finish_badly(outage.start(object), FailureKind::kTransient, failed_with(status), 2,
                        at(0.01 * i), 0);
  }
}

TEST_CASE("failures of one object are its own fault if requests for others are answered") {
  Outage outage;
  CHECK_FALSE(outage.is_fault_of(1));
  outage.finish_well(outage.start(1), at(0));
  fail_for(outage, {1});
  REQUIRE(outage.is_open());
  CHECK_FALSE(outage.is_fault_of(1));  // no other object was requested

  Outage with_others;
  with_others.finish_well(with_others.start(2), at(0));
  with_others.finish_well(with_others.start(1), at(0));
  fail_for(with_others, {1});
  CHECK(with_others.is_fault_of(1));
  CHECK_FALSE(with_others.is_fault_of(2));
  CHECK_FALSE(with_others.is_fault_of(0));
}

TEST_CASE(
    "failures that other objects share, or that a whole server has, are not one object's fault") {
  for (const auto& [objects, status] : std::vector<std::pair<std::vector<std::uint64_t>, int>>{
           {{1, 2}, 500}, {{1}, 502}, {{1}, 503}, {{0}, 500}}) {
    Outage outage;
    outage.finish_well(outage.start(1), at(0));
    outage.finish_well(outage.start(2), at(0));
    fail_for(outage, objects, status);
    REQUIRE(outage.is_open());
    CHECK_FALSE(outage.is_fault_of(1));
  }
}

TEST_CASE("one failure among many good answers is no outage") {
  Outage outage;
  for (int i = 0; i < 1000; ++i) {
    const OutageTicket ticket = outage.start();
    if (i % 10 == 0) {
      CHECK_FALSE(fail(outage, ticket, i * 0.001, 64));
    } else {
      outage.finish_well(ticket, at(i * 0.001));
    }
  }
  CHECK(outage.totals(at(1)).outages == 0);
}

TEST_CASE("each probe waits twice as long for its answer as the last one") {
  Outage outage = open_outage();
  std::vector<double> limits;
  for (double seconds = 10; limits.size() < 4; seconds += 10) {
    const OutageTicket probe = outage.start();
    limits.push_back(probe.first_byte_s);
    fail(outage, probe, seconds);
  }
  CHECK(limits == std::vector<double>{2, 4, 8, 16});
}

TEST_CASE("a request that is no probe has no deadline for its first byte") {
  Outage outage;
  CHECK(std::isinf(outage.start().first_byte_s));
}

TEST_CASE("the third failure in a row begins an outage, and is not the fault of its request") {
  Outage outage;
  CHECK_FALSE(fail(outage, outage.start(), 0));
  CHECK_FALSE(fail(outage, outage.start(), 10));
  CHECK(fail(outage, outage.start(), 20));
  CHECK(outage.is_open());
}

TEST_CASE("failures of a quarter of the requests in flight within a second begin an outage") {
  Outage outage;
  for (int i = 0; i < 100; ++i) outage.finish_well(outage.start(), at(0));
  std::vector<OutageTicket> started;
  for (int i = 0; i < 64; ++i) started.push_back(outage.start());
  int failed = 0;
  // Every second request, so never two in a row.
  for (std::size_t i = 0; !outage.is_open(); i += 2) {
    fail(outage, started[i], 0.5, 64);
    outage.finish_well(started[i + 1], at(0.5));
    ++failed;
  }
  CHECK(failed == 16);
}

TEST_CASE("as many failures over a longer time begin no outage") {
  Outage outage;
  for (int i = 0; i < 64; ++i) {
    fail(outage, outage.start(), i * 0.5, kFew);
    outage.finish_well(outage.start(), at(i * 0.5));
  }
  CHECK_FALSE(outage.is_open());
}

bool refuse(Outage& outage, double seconds, std::uint32_t in_flight, double retry_after_s = 0) {
  return outage.finish_badly(outage.start(), FailureKind::kThrottle, failure(retry_after_s),
                             in_flight, at(seconds), kLongest);
}

void answer(Outage& outage, double seconds, int times) {
  for (int i = 0; i < times; ++i) outage.finish_well(outage.start(), at(seconds));
}

TEST_CASE("one refusal among many good answers is no outage (regression)") {
  Outage outage;
  for (int i = 0; i < 50; ++i) {
    answer(outage, i * 0.01, 19);
    CHECK_FALSE(refuse(outage, i * 0.01, 64));
  }
  CHECK(outage.totals(at(1)).outages == 0);
}

TEST_CASE("a refusal begins an outage if the server says when to come back") {
  Outage outage;
  answer(outage, 0, 100);
  CHECK(refuse(outage, 0, 64, 1));
}

TEST_CASE("a refusal of the only request is no outage, but three refusals in a row are") {
  Outage outage;
  answer(outage, 0, 100);
  CHECK_FALSE(refuse(outage, 0, 1));
  CHECK_FALSE(refuse(outage, 2, 1));
  CHECK(refuse(outage, 4, 1));
}

TEST_CASE("a refusal begins an outage if there was no good answer since the last outage") {
  Outage outage;
  answer(outage, 0, 100);
  CHECK(refuse(outage, 0, 64, 1));
  answer(outage, 1, 1);  // ends the outage
  CHECK(refuse(outage, 1, 64));
  answer(outage, 2, 1);
  answer(outage, 2, 1);
  CHECK_FALSE(refuse(outage, 2, 64));
}

TEST_CASE("one refusal is no outage if a server refuses half of all requests (regression)") {
  Outage outage;
  for (int i = 0; i < 100; ++i) {
    CHECK_FALSE(refuse(outage, i * 0.01, 4));
    answer(outage, i * 0.01, 1);
  }
  for (int i = 0; i < 8; ++i) CHECK_FALSE(refuse(outage, 2, 4));
  for (int i = 0; i < 8; ++i) refuse(outage, 2, 4);
  CHECK(outage.is_open());  // more than a dozen refusals in a row are not chance
  answer(outage, 60, 1);
  CHECK_FALSE(refuse(outage, 60, 4));
}

TEST_CASE("refusals begin an outage if three in four are refused within a second") {
  for (const int good : {1, 2}) {
    Outage outage;
    answer(outage, 0, 100);
    bool is_open = false;
    for (int i = 0; i < 16 && !is_open; ++i) {
      is_open = refuse(outage, 0, 64);
      if (i % 4 < good) answer(outage, 0, 1);
    }
    CHECK(is_open == (good == 1));
  }
}

TEST_CASE("refusals in a row begin an outage if they are a quarter of the requests in flight") {
  for (const std::uint32_t in_flight : {2U, 4U, 12U, 64U, 256U}) {
    CAPTURE(in_flight);
    Outage outage;
    answer(outage, 0, 1000);
    const std::uint32_t in_a_row = std::max(3U, in_flight / 4);
    for (std::uint32_t i = 1; i < in_a_row; ++i) CHECK_FALSE(refuse(outage, 0, in_flight));
    CHECK(refuse(outage, 0, in_flight));
  }
}

TEST_CASE("a request in flight at the start of an outage belongs to it if it fails later") {
  Outage outage;
  const OutageTicket before = outage.start();
  for (int i = 0; i < 3; ++i) fail(outage, outage.start(), 0);
  CHECK(fail(outage, before, 0.1));
  const OutageTicket late = before;
  outage.finish_well(outage.start(), at(1));
  REQUIRE_FALSE(outage.is_open());
  CHECK(fail(outage, late, 2));
  CHECK_FALSE(outage.is_open());
}

TEST_CASE("only an answer to a probe ends an outage, not one to an earlier request") {
  Outage outage;
  const OutageTicket before = outage.start();
  for (int i = 0; i < 3; ++i) fail(outage, outage.start(), 0);
  outage.finish_well(before, at(0.01));
  CHECK(outage.is_open());
  outage.finish_well(outage.start(), at(1));
  CHECK_FALSE(outage.is_open());
}

TEST_CASE("there is one probe at a time, after pauses that double up to five seconds") {
  Outage outage = open_outage();
  double now_s = 0;
  std::vector<double> pauses;
  for (int i = 0; i < 10; ++i) {
    CHECK_FALSE(outage.may_probe(at(now_s)));
    pauses.push_back(seconds_between(at(now_s), outage.probe_at()));
    now_s += pauses.back() + 1e-6;  // because a clock counts whole nanoseconds
    REQUIRE(outage.may_probe(at(now_s)));
    const OutageTicket probe = outage.start();
    CHECK_FALSE(outage.may_probe(at(now_s + 100)));
    CHECK(fail(outage, probe, now_s));
  }
  CHECK(pauses[0] == doctest::Approx(0.05).epsilon(0.01));
  CHECK(pauses[3] == doctest::Approx(0.4).epsilon(0.01));
  CHECK(pauses[9] == doctest::Approx(5).epsilon(0.01));
}

TEST_CASE("a server that throttles is probed more slowly, and Retry-After is obeyed") {
  Outage outage;
  for (int i = 0; i < 3; ++i) {
    outage.finish_badly(outage.start(), FailureKind::kThrottle, failure(), kFew, kStart, kLongest);
  }
  CHECK(seconds_between(kStart, outage.probe_at()) == doctest::Approx(0.25).epsilon(0.01));
  outage.finish_badly(outage.start(), FailureKind::kThrottle, failure(7), kFew, kStart, kLongest);
  CHECK(seconds_between(kStart, outage.probe_at()) == doctest::Approx(7));
  outage.finish_badly(outage.start(), FailureKind::kThrottle, failure(1e300), kFew, kStart, 0);
  CHECK(outage.probe_at() > kStart);
}

TEST_CASE("a cancelled probe is followed by another") {
  Outage outage = open_outage();
  outage.cancel(outage.start());
  CHECK(outage.may_probe(at(10)));
}

TEST_CASE("an outage is reported as one event, with its first and its last failure") {
  Outage outage;
  fail(outage, outage.start(), 0);
  fail(outage, outage.start(), 0);
  outage.finish_badly(outage.start(), FailureKind::kTransient,
                      error_of(ErrorCode::kConnect, "reset"), kFew, at(1), kLongest);
  outage.finish_badly(outage.start(), FailureKind::kTransient,
                      error_of(ErrorCode::kConnect, "refused"), kFew, at(2), kLongest);
  const OutageRecord& story = outage.story();
  CHECK(story.since == at(1));
  CHECK(story.first_failure == "reset");
  CHECK(story.last_failure.detail == "refused");
  CHECK(description_of("http://server:80", story, at(4)) ==
        "http://server:80 has been failing for 3.0 s and 2 requests");
}

TEST_CASE("totals include the outages that ended and the current one") {
  Outage outage = open_outage();
  outage.finish_well(outage.start(), at(2));
  for (int i = 0; i < 3; ++i) fail(outage, outage.start(), 3);
  outage.start();
  const OutageTotals totals = outage.totals(at(4));
  CHECK(totals.outages == 2);
  CHECK(totals.probes == 2);
  CHECK(totals.waited_s == doctest::Approx(3));
}

}  // namespace
}  // namespace streamer
