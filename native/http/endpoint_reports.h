// Reports the result of each request to its server's Endpoint: whether the server works, how long
// responses take, and how fast each of its addresses is.
//
// Belongs to the reactor's thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"
#include "base/read_error.h"
#include "http/requests_in_flight.h"

namespace streamer {

class EndpointReports {
 public:
  // A new block of this size is requested. The times of requests that are much smaller than the
  // largest are not compared.
  void note_block(std::uint64_t bytes) { full_size_bytes_ = std::max(full_size_bytes_, bytes); }

  // All bytes of the block are there. `flight` was released, as in report_failure().
  void report_success(const HttpTransfer& transfer, const Flight& flight, TimePoint now) const;

  // Returns whether the failure belongs to an outage. Sets `error.is_of_object`.
  bool report_failure(const HttpTransfer& transfer, const Flight& flight, ReadError& error,
                      TimePoint now) const;

 private:
  std::uint64_t full_size_bytes_ = 0;  // of the largest block so far
};

}  // namespace streamer
