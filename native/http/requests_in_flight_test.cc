#include "http/requests_in_flight.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "http/driven_requests_fixture.h"

namespace streamer {
namespace {

const std::string kData = "0123456789abcdefghij";
const LoopbackServer::Script kSilent = [](int) { return LoopbackFault::kSilent; };

TEST_CASE("a request puts its bytes in their place, and stays in flight until it is released") {
  const LoopbackServer server(kData);
  DrivenRequests driven(server, kData.size());
  RequestsInFlight& requests = driven.requests();
  const TimePoint started = Clock::now();
  HttpTransfer& transfer = driven.send(driven.block(5, 9), started);
  REQUIRE(driven.next_ended().transfer == &transfer);
  CHECK(requests.has(transfer));
  CHECK(requests.size() == 1);
  const Flight flight = requests.release(transfer, true);
  CHECK(flight.started == started);
  CHECK_FALSE(requests.has(transfer));
  CHECK(requests.size() == 0);
  CHECK(driven.bytes().substr(5, 4) == kData.substr(5, 4));
  CHECK(transfer.take_block().received == 4);
  CHECK(requests.received_bytes() == 4);
}

TEST_CASE("as many requests are sent at a time as there are transfers") {
  const LoopbackServer server(kData, kSilent);
  DrivenRequests driven(server, kData.size());
  for (unsigned i = 0; i < DrivenRequests::kMaxInFlight; ++i) {
    CHECK(driven.requests().has_idle_transfer());
    driven.send(driven.block(i, i + 1));
  }
  CHECK_FALSE(driven.requests().has_idle_transfer());
  driven.requests().cancel(*driven.requests().transfers()[0]);
  CHECK(driven.requests().has_idle_transfer());
}

TEST_CASE("connections are counted until a request loses its own, or all are closed") {
  const LoopbackServer server(kData, kSilent);
  DrivenRequests driven(server, kData.size());
  RequestsInFlight& requests = driven.requests();
  HttpTransfer& first = driven.send(driven.block(0, 1));
  HttpTransfer& second = driven.send(driven.block(1, 2));
  HttpTransfer& third = driven.send(driven.block(2, 3));
  CHECK(requests.connections() == 3);
  CHECK_FALSE(requests.has_idle_connection());
  requests.release(first, true);
  CHECK(requests.connections() == 3);
  CHECK(requests.has_idle_connection());
  requests.cancel(second);
  CHECK(requests.connections() == 2);
  requests.release(third, true);
  requests.close_connections();
  CHECK(requests.connections() == 0);
}

TEST_CASE("connections may be idle without a request, and again after the next one") {
  const LoopbackServer server(kData);
  DrivenRequests driven(server, kData.size());
  RequestsInFlight& requests = driven.requests();
  CHECK(requests.are_all_connections_idle());  // the handle may have some of an earlier load
  requests.close_connections();
  CHECK_FALSE(requests.are_all_connections_idle());
  HttpTransfer& transfer = driven.send(driven.block(0, 1));
  CHECK_FALSE(requests.are_all_connections_idle());
  requests.release(transfer, true);
  CHECK(requests.are_all_connections_idle());
}

TEST_CASE("a cancelled request leaves its place at the server to another one") {
  const LoopbackServer server(kData, kSilent);
  DrivenRequests driven(server, kData.size());
  open_outage(*driven.endpoint());
  const TimePoint later = after(Clock::now(), 60);
  HttpTransfer& probe = driven.send(driven.block(0, 1), later);
  CHECK_FALSE(driven.endpoint()->try_start(later));
  driven.requests().cancel(probe);
  driven.send(driven.block(0, 1), later);
  driven.requests().cancel_all();
  CHECK(driven.endpoint()->try_start(later));
  CHECK(driven.requests().size() == 0);
}

TEST_CASE("a request and its duplicate refer to each other while both are in flight") {
  const LoopbackServer server(kData, kSilent);
  DrivenRequests driven(server, kData.size());
  RequestsInFlight& requests = driven.requests();
  HttpTransfer& slow = driven.send(driven.block(0, 4));
  HttpTransfer& duplicate = driven.duplicate(slow);
  CHECK(requests.flight_of(slow).has_duplicate());
  CHECK_FALSE(requests.flight_of(duplicate).has_duplicate());
  CHECK(requests.flight_of(duplicate).is_duplicate());
  const Flight failed = requests.cancel(duplicate);
  CHECK(failed.partner == &slow);
  CHECK_FALSE(requests.flight_of(slow).has_duplicate());

  HttpTransfer& next = driven.duplicate(slow);
  const Flight ended = requests.release(slow, true);
  CHECK(ended.partner == &next);
  CHECK(requests.flight_of(next).partner == nullptr);
}

}  // namespace
}  // namespace streamer
