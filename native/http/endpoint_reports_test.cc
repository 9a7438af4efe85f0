#include "http/endpoint_reports.h"

#include <doctest/doctest.h>

#include <cerrno>
#include <string>
#include <utility>

#include "http/driven_requests_fixture.h"

namespace streamer {
namespace {

const std::string kData = "0123456789abcdefghij";

// Sends requests one after the other, and reports each.
class Reported {
 public:
  explicit Reported(LoopbackServer::Script script = {}) : server_(kData, std::move(script)) {}

  // Requests that many bytes `count` times.
  void succeed(std::size_t bytes, int count) {
    for (int i = 0; i < count; ++i) {
      HttpTransfer& transfer = driven.send(driven.block(0, bytes));
      driven.next_ended();
      const Flight flight = driven.requests().release(transfer, true);
      reports.report_success(transfer, flight, Clock::now());
    }
  }
  // Returns whether the failure is of an outage.
  bool fail(ReadError& error) {
    HttpTransfer& transfer = driven.send(driven.block(0, 10));
    const Flight flight = driven.requests().release(transfer, true);
    return reports.report_failure(transfer, flight, error, Clock::now());
  }

  Endpoint& endpoint() { return *driven.endpoint(); }

 private:
  LoopbackServer server_;

 public:
  DrivenRequests driven{server_, kData.size()};
  EndpointReports reports;
};

ReadError refusal() {
  ReadError error = error_of(ErrorCode::kHttpStatus, "slow down");
  error.http_status = 503;
  return error;
}

TEST_CASE("the times of full requests are recorded, and those of small ones are not") {
  Reported reported;
  reported.reports.note_block(20);
  reported.reports.note_block(1);
  reported.succeed(9, 40);
  CHECK_FALSE(reported.endpoint().slow_after_s());
  CHECK(reported.endpoint().has_answered());
  reported.succeed(10, 20);
  CHECK(reported.endpoint().slow_after_s());
}

TEST_CASE("an answer on a connection that answered before is noted") {
  Reported reported;
  reported.succeed(10, 1);
  CHECK(reported.endpoint().answered_again.value() == TimePoint{});
  reported.succeed(10, 1);
  CHECK(reported.endpoint().answered_again.value() > TimePoint{});
}

TEST_CASE("refusals in a row are an outage, and close what is kept of the server's connections") {
  Reported reported;
  const auto server = reported.driven.endpoint();
  KeptConnections::of_process().release();
  bool is_of_outage = false;
  for (int i = 0; i < 3; ++i) {
    KeptConnections::of_process().keep(new_multi(), server);
    ReadError error = refusal();
    is_of_outage = reported.fail(error);
    CHECK(KeptConnections::of_process().kept() == 0);
  }
  CHECK(is_of_outage);
  CHECK(server->outage());
}

TEST_CASE("a request without a descriptor says nothing of the server") {
  Reported reported;
  for (int i = 0; i < 10; ++i) {
    ReadError error = error_of(ErrorCode::kConnect, "no descriptor");
    error.os_error = EMFILE;
    CHECK_FALSE(reported.fail(error));
  }
  CHECK_FALSE(reported.endpoint().outage());
  CHECK_FALSE(reported.endpoint().has_answered());
}

}  // namespace
}  // namespace streamer
