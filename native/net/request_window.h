// How many requests one endpoint is sent at a time once it has had an outage or asked for patience.
//
// Additive increase, multiplicative decrease (RFC 5681's rule for TCP, on requests): unlimited
// until the first outage, then half of what was in flight, and one more for every round that went
// well.
//
// Not thread-safe; Endpoint calls it under its lock.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

namespace streamer {

class RequestWindow {
 public:
  bool has_room() const { return static_cast<double>(in_flight_) < limit_; }

  void start() { ++in_flight_; }

  void finish_well() {
    --in_flight_;
    if (limit_ < kUnlimited) limit_ += 1 / limit_;
  }

  // A failure, or a request that was given up.
  void finish_otherwise() { --in_flight_; }

  // Once for each outage, while the requests that were sent before it still count.
  void halve() { limit_ = std::max(1.0, std::min(limit_, static_cast<double>(in_flight_)) / 2); }

  double limit() const { return limit_; }
  std::uint32_t in_flight() const { return in_flight_; }

 private:
  static constexpr double kUnlimited = std::numeric_limits<double>::max();

  std::uint32_t in_flight_ = 0;
  double limit_ = kUnlimited;
};

}  // namespace streamer
