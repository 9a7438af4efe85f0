// How many requests one endpoint is sent at a time once it has asked for
// patience.
//
// Additive increase, multiplicative decrease (RFC 5681's rule for TCP, on
// requests): unlimited until the first 429 or 503, then half of what was in
// flight, and one more for every round that went well. Answers to requests that
// were sent before the last decrease say nothing new, so they do not decrease
// it again.
//
// Not thread-safe; Endpoint calls it under its lock.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

namespace streamer {

class ThrottleWindow {
 public:
  using Epoch = std::uint32_t;

  bool has_room() const { return static_cast<double>(in_flight_) < limit_; }

  // One more request is under way; the answer is told with what this returns.
  Epoch start() {
    ++in_flight_;
    return epoch_;
  }

  void finish_well() {
    --in_flight_;
    if (limit_ < kUnlimited) limit_ += 1 / limit_;
  }

  void finish_throttled(Epoch started_in) {
    const double most = std::min(limit_, static_cast<double>(in_flight_));
    --in_flight_;
    if (started_in != epoch_) return;
    limit_ = std::max(1.0, most / 2);
    ++epoch_;
  }

  // Any other end: a failure that says nothing about load, or a cancelled
  // request.
  void finish_otherwise() { --in_flight_; }

  double limit() const { return limit_; }
  std::uint32_t in_flight() const { return in_flight_; }

 private:
  static constexpr double kUnlimited = std::numeric_limits<double>::max();

  std::uint32_t in_flight_ = 0;
  double limit_ = kUnlimited;
  Epoch epoch_ = 0;
};

}  // namespace streamer
