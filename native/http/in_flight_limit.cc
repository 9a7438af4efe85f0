#include "http/in_flight_limit.h"

namespace streamer {

bool InFlightLimit::keep_to_open(std::size_t in_flight) {
  if (in_flight == 0) {
    end_if_others_remain();
    if (!is_ending_) return false;
  }
  window_.limit(static_cast<unsigned>(in_flight));
  return true;
}

void InFlightLimit::keep_to_served(std::size_t served, TimePoint now) {
  window_.shrink(static_cast<unsigned>(served), now);
  if (served == 0) end_if_others_remain();
}

void InFlightLimit::record_sleep(TimePoint before, TimePoint now, std::uint64_t received_bytes,
                                 std::size_t in_flight) {
  counters_.received_bytes += received_bytes - counted_bytes_;
  counted_bytes_ = received_bytes;
  const ReceivedBytes received{.by_reactor = received_bytes, .in_all = counters_.received_bytes};
  if (has_room(in_flight)) {
    window_.restart(before, received);
  } else {
    window_.record_sleep(before, now, received);
  }
}

void InFlightLimit::end_if_others_remain() {
  is_ending_ = is_ending_ || counters_.reactors.leave_to_others();
}

}  // namespace streamer
