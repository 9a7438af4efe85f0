// One thread with its own connections, and several ranged GETs in flight.
//
// The thread takes blocks from the HTTP lane whenever a transfer is free, and drives all transfers
// at once. Only wake() may be called from another thread. Python is never called: when an object's
// credentials need renewing, the consumer is asked through the scheduler and the block waits in the
// queue meanwhile. The Endpoint of a server, which all loads of the process share, decides how many
// requests the server gets, and whether it has an outage. Blocks of a paused server wait in the
// queue, and blocks of other servers go on.
//
// The reactor is the loop. Each of its parts has one responsibility: what is in flight, how many
// requests that may be, duplicates of slow requests, requests that a server does not serve, the
// renewal of credentials, and reports to the Endpoint.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "http/counters.h"
#include "http/credential_renewals.h"
#include "http/curl_multi.h"
#include "http/endpoint_reports.h"
#include "http/hedged_requests.h"
#include "http/in_flight_limit.h"
#include "http/object.h"
#include "http/requests_in_flight.h"
#include "http/unserved_requests.h"
#include "net/endpoint.h"
#include "net/retry.h"
#include "schedule/block_retries.h"
#include "schedule/scheduler.h"

namespace streamer {

class HttpReactor {
 public:
  // `objects` is indexed by source. It holds null for sources that are not read over HTTP, and at
  // least one object. The reactor starts with kept connections to the server of the first object,
  // and keeps its own connections at the end.
  HttpReactor(Scheduler& scheduler, const std::vector<std::unique_ptr<HttpObject>>& objects,
              const Timeouts& timeouts, const RetryOptions& retry, HedgeBudget& hedge_budget,
              unsigned max_in_flight, HttpCounters& counters);
  ~HttpReactor();
  HttpReactor(const HttpReactor&) = delete;
  HttpReactor& operator=(const HttpReactor&) = delete;

  // Runs until the lane has no more work or everything is stopped. Called once, on the reactor's
  // thread.
  void run();

  // Makes run() check the queue again. May be called from any thread while this object exists.
  void wake() { multi_.wake(); }

 private:
  void drive();
  void close_idle_connections();
  void start_blocks();
  void start(Block block, TimePoint now);
  void collect_finished();
  void enforce_deadlines();
  bool is_given_up(HttpTransfer& transfer, TimePoint now);
  void give_up(HttpTransfer& transfer);
  void settle(HttpTransfer& transfer, std::optional<ReadError> error);
  void try_again(HttpTransfer& transfer, ReadError error, bool is_of_outage);
  void send_unserved_again(TimePoint now);
  void put_back(Block block, TimePoint due);
  void sleep();
  bool has_room() const { return limit_.has_room(requests_.size()); }
  int poll_timeout_ms() const;

  Scheduler& scheduler_;
  const std::vector<std::unique_ptr<HttpObject>>& objects_;
  const BlockRetries retries_;
  const double block_deadline_s_;
  HttpCounters& counters_;
  HedgeBudget& hedge_budget_;               // shared by all reactors of the load
  const std::shared_ptr<Endpoint> server_;  // its connections are kept at the end
  CurlMulti multi_;
  RequestsInFlight requests_;
  InFlightLimit limit_;
  HedgedRequests hedged_;
  UnservedRequests unserved_;
  CredentialRenewals renewals_;
  EndpointReports reports_;
  std::optional<TimePoint> retry_at_;
  TimePoint next_deadline_check_{};
  bool is_lane_finished_ = false;
  bool is_reusable_ = false;  // run() ended normally, so the connections can be kept
};

}  // namespace streamer
