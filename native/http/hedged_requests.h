// Duplicates of slow requests: sends them, and completes a slow block with the bytes of its
// duplicate.
//
// Belongs to the reactor's thread; the HedgeBudget is shared by all reactors of the load.
#pragma once

#include "base/clock.h"
#include "http/counters.h"
#include "http/duplicate_request.h"
#include "http/requests_in_flight.h"

namespace streamer {

class HedgedRequests {
 public:
  // All of these must outlive this object.
  HedgedRequests(RequestsInFlight& requests, HedgeBudget& budget, HttpCounters& counters)
      : requests_(requests), budget_(budget), counters_(counters) {}

  // Sends a duplicate of each request that is slower than its server's limit, the slowest first. A
  // request gets no duplicate if no transfer is idle, the server has no room or an outage, or the
  // budget is spent.
  void send(TimePoint now);

  // Cancels the slow request of a duplicate whose bytes are all there, and returns the slow
  // request's block with these bytes. `duplicate` was released.
  Block complete(const Flight& duplicate);

 private:
  void send_duplicate(HttpTransfer& slow, TimePoint now);

  RequestsInFlight& requests_;
  HedgeBudget& budget_;
  HttpCounters& counters_;
};

}  // namespace streamer
