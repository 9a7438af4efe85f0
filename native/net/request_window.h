// How many requests one endpoint is sent at a time once it has had an outage or asked for patience.
//
// Additive increase, multiplicative decrease (RFC 5681's rule for TCP, on requests): unlimited
// until the first outage, then half of what was in flight, and one more for every round that went
// well.
//
// One refusal among many good answers takes a quarter of a request: a round that is refused as a
// whole takes a quarter of the window, one of which little is refused takes little (DCTCP's rule,
// RFC 8257). So the window settles where 4 / window of the requests are refused. Half of it for
// each round with a refusal would leave five of 64 in flight where one in twenty is refused at
// random, and slows a load that no server asked to be this slow.
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

  // Once for each outage, while the requests that were sent before it still count. A request that
  // was alone, as the last of a load is, was not too much.
  void halve() {
    if (in_flight_ <= 1) return;
    limit_ = std::max(1.0, std::min(limit_, static_cast<double>(in_flight_)) / 2);
  }

  // For a refusal that is no outage, while its request still counts. The window was unlimited until
  // the first, and what is in flight may still be growing: that is no reason to stay so small.
  void shrink() {
    const double before =
        limit_ < kUnlimited ? limit_ : std::max(kFirstLimit, static_cast<double>(in_flight_));
    limit_ = std::max(std::min(before, kFloor), before - kShrinkage);
  }

  double limit() const { return limit_; }
  std::uint32_t in_flight() const { return in_flight_; }

 private:
  static constexpr double kUnlimited = std::numeric_limits<double>::max();
  static constexpr double kFirstLimit = 64;  // what one reactor has at most in flight by default
  // Where less than this is too much, a quarter is refused: an outage, which may halve it further.
  static constexpr double kFloor = 4;
  static constexpr double kShrinkage = 0.25;

  std::uint32_t in_flight_ = 0;
  double limit_ = kUnlimited;
};

}  // namespace streamer
