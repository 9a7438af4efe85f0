// Requests on connections that the server does not serve.
//
// Some servers have one process for each connection. A connection too many is not served until
// another one is closed, and ours stay open as long as the load. A request on an unserved
// connection is cancelled, and its block is sent again on a served one, by this reactor or by
// another.
//
// Belongs to the reactor's thread.
#pragma once

#include <cstddef>
#include <vector>

#include "base/clock.h"
#include "http/requests_in_flight.h"

namespace streamer {

class UnservedRequests {
 public:
  struct Cancelled {
    std::size_t requests = 0;   // duplicates included
    std::vector<Block> blocks;  // to send again; a duplicate's block is not among them
  };

  // `requests` must outlive this object.
  explicit UnservedRequests(RequestsInFlight& requests) : requests_(requests) {}

  // Cancels the requests that have waited unserved for too long while the server serves others.
  // Tells all owners of idle connections to the server about each request that waits unserved.
  Cancelled cancel(TimePoint now);

 private:
  bool has_waited_too_long(const HttpTransfer& transfer, const Flight& flight, TimePoint now) const;
  bool is_another_served(const HttpTransfer& transfer, const Flight& flight) const;

  RequestsInFlight& requests_;
};

}  // namespace streamer
