// How many requests one reactor may have in flight, and whether it ends because it can have none.
//
// The window (in_flight_window.h) follows the speed of the connections. It gets smaller if this
// machine has no descriptor for another connection, or if the server serves only some of the
// connections. A reactor without any connection ends if another reactor of the load remains.
//
// Belongs to the reactor's thread; the HttpCounters are shared by all reactors of the load.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "http/counters.h"
#include "http/in_flight_window.h"

namespace streamer {

class InFlightLimit {
 public:
  // `counters` must outlive this object.
  InFlightLimit(unsigned max_in_flight, const RequestAdvice& advice, unsigned servers,
                HttpCounters& counters)
      : window_(max_in_flight, advice, servers), counters_(counters) {}

  bool has_room(std::size_t in_flight) const { return in_flight < window_.size(); }
  // Whether the reactor must take no further block, because it leaves them to others.
  bool is_ending() const { return is_ending_; }

  // A request found no descriptor: from now on, the reactor uses at most the connections of the
  // requests in flight. Returns false if no reactor of the load has a connection.
  bool keep_to_open(std::size_t in_flight);

  // For a while, the reactor uses only as many connections as the server serves.
  void keep_to_served(std::size_t served, TimePoint now);

  // The reactor slept from `before` to `now`. `received_bytes`: by it, since the start of the load.
  void record_sleep(TimePoint before, TimePoint now, std::uint64_t received_bytes,
                    std::size_t in_flight);

 private:
  void end_if_others_remain();

  InFlightWindow window_;
  HttpCounters& counters_;
  std::uint64_t counted_bytes_ = 0;  // the received bytes that are in counters_
  bool is_ending_ = false;           // it has no connection; other reactors have some
};

}  // namespace streamer
