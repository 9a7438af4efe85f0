#include "net/lookup.h"

#include <doctest/doctest.h>

#include <thread>
#include <vector>

namespace streamer {
namespace {

ReadError refused() { return error_of(ErrorCode::kConnect, "refused"); }

ReadError broken() {
  ReadError error = error_of(ErrorCode::kHttpStatus, "broken");
  error.http_status = 500;
  return error;
}

bool answer(Lookup& lookup) {
  const bool is_started = !lookup.try_start();
  lookup.finish_well();
  return is_started;
}

// Waits until the pause before the first probe of an outage is over, at most 50 ms.
void wait_to_start(Lookup& lookup) {
  while (lookup.try_start()) std::this_thread::yield();
}

TEST_CASE("lookups and reads of one server share its outage, and one of them is the probe") {
  Lookup first("http://lookups/a", "");
  REQUIRE(answer(first));
  CHECK(first.has_server_answered());
  REQUIRE_FALSE(first.try_start());
  CHECK(first.first_byte_s() == std::numeric_limits<double>::infinity());
  CHECK_FALSE(first.finish_badly(refused(), 3, 0));  // three failures in a row
  REQUIRE(first.outage());
  const auto read = Endpoint::of("http://lookups/b");
  CHECK(read->outage());

  Lookup probe("http://lookups/c", "");
  wait_to_start(probe);
  CHECK(probe.is_probe());
  CHECK(probe.first_byte_s() < 10);
  CHECK(first.try_start());
  CHECK(read->closed_until(Clock::now()));
  SUBCASE("its answer ends the outage") { probe.finish_well(); }
  SUBCASE("a cancelled probe lets another lookup be the probe") {
    probe.cancel();
    CHECK_FALSE(first.try_start());
    CHECK(first.is_probe());
    first.finish_well();
  }
  CHECK_FALSE(read->outage());
}

TEST_CASE("a client that misses the deadline of a probe does not delay other requests") {
  Endpoint endpoint("http://lookups-slow", true);
  const TimePoint now = Clock::now();
  for (int i = 0; i < 3; ++i) endpoint.finish_badly(*endpoint.try_start(now), refused(), now);
  const TimePoint later = after(now, 1);
  const auto probe = endpoint.try_start_lookup(later, 1);
  REQUIRE(probe);
  REQUIRE(probe->is_probe);
  CHECK(endpoint.closed_until(later));
  CHECK(endpoint.closed_until(after(later, 0.9 * probe->first_byte_s)));
  const TimePoint lost = after(later, probe->first_byte_s);
  const auto next = endpoint.try_start(lost);
  REQUIRE(next);
  CHECK(endpoint.closed_until(lost));
  SUBCASE("a late answer to the lost probe ends the outage") {
    endpoint.finish_well(*probe, 0, false, lost);
  }
  SUBCASE("the next probe may end it too") { endpoint.finish_well(*next, 0, false, lost); }
  CHECK_FALSE(endpoint.outage());
}

TEST_CASE("a failure of one request is no outage, and only this request waits for a moment") {
  Lookup lookup("http://lookups-alone/a", "");
  REQUIRE(answer(lookup));
  REQUIRE_FALSE(lookup.try_start());
  const auto pause_s = lookup.finish_badly(refused(), 1, 0.5);
  REQUIRE(pause_s);
  CHECK(*pause_s > 0);
  CHECK(*pause_s < 0.5);
  CHECK_FALSE(lookup.outage());
}

TEST_CASE("a failure of only one lookup is reported as such") {
  Lookup other("http://lookups-object/a", "");
  Lookup lookup("http://lookups-object/b", "");
  REQUIRE(answer(other));
  REQUIRE_FALSE(lookup.try_start());
  lookup.finish_badly(broken(), 1, 0);
  CHECK(lookup.fails_alone());
  REQUIRE_FALSE(lookup.try_start());
  lookup.finish_badly(refused(), 1, 0);
  CHECK_FALSE(lookup.fails_alone());
}

TEST_CASE(
    "a server that never answered has no outage, and an answer by a proxy does not change that") {
  Lookup lookup("http://lookups-nowhere", "");
  for (int i = 0; i < 5; ++i) {
    REQUIRE_FALSE(lookup.try_start());
    CHECK(lookup.finish_badly(refused(), 3, 0));
  }
  CHECK_FALSE(lookup.outage());
  Lookup by_proxy("http://lookups-nowhere", "http://proxy:3128");
  by_proxy.note_answer();
  CHECK(by_proxy.has_server_answered());
  CHECK_FALSE(lookup.has_server_answered());
}

TEST_CASE("two versions of NFS are two services, with the same names for lookups and reads") {
  Lookup usual("nfs://lookups:2049", "");
  Lookup other("nfs://lookups:2049?version=3", "");
  usual.note_answer();
  CHECK_FALSE(other.has_server_answered());
  CHECK(Endpoint::named("nfs://lookups:2049")->has_answered());
}

TEST_CASE("a lookup needs no room in the window of the reads, which is smaller after an outage") {
  const auto reads = Endpoint::of("http://lookups-room");
  reads->note_answer();
  const TimePoint now = Clock::now();
  std::vector<OutageTicket> under_way;
  for (int i = 0; i < 7; ++i) under_way.push_back(*reads->try_start(now));
  for (; under_way.size() > 4; under_way.pop_back()) {
    reads->finish_badly(under_way.back(), refused(), now);
  }
  REQUIRE(reads->outage());
  Lookup lookup("http://lookups-room/a", "");
  while (lookup.try_start())
    std::this_thread::yield();  // the pause before the probe: 50 ms at most
  lookup.finish_well();
  REQUIRE_FALSE(reads->outage());
  CHECK_FALSE(reads->try_start(Clock::now()));
  CHECK_FALSE(lookup.try_start());  // the lookup is started although there is no room
}

TEST_CASE("reads of a server detect a lookup that is in flight") {
  const auto read = Endpoint::of("http://lookups-waiting");
  Lookup lookup("http://lookups-waiting/a", "");
  lookup.begin();
  CHECK_FALSE(read->waiting->are_some(Clock::now()));
  CHECK(read->waiting->are_some(after(Clock::now(), 10)));
  lookup.end();
  CHECK_FALSE(read->waiting->are_some(after(Clock::now(), 10)));
}

}  // namespace
}  // namespace streamer
