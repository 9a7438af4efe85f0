// How many requests one endpoint is sent at a time once it has had an outage or asked for patience.
//
// Additive increase, multiplicative decrease (RFC 5681's rule for TCP, on requests): unlimited
// until the first outage, then half of what was in flight, and one more for every round that went
// well.
//
// One failure among many good answers takes a quarter of a request: a round that fails as a whole
// takes a quarter of the window, one of which little fails takes little (DCTCP's rule, RFC 8257).
// So the window settles where 4 / window of the requests fail. Half of it for each round with a
// refusal would leave five of 64 in flight if one in twenty is refused at random, and slows a
// load that no server asked to be this slow.
//
// Whether fewer requests fail less is observed (pressure_record.h). If they do not, as many fail at
// random, a failure gives the quarter back. If they do, a small window takes more than a quarter,
// so that it settles where one in five fails.
//
// Not thread-safe; Endpoint calls it under its lock.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "net/pressure_record.h"

namespace streamer {

class RequestWindow {
 public:
  bool has_room() const { return static_cast<double>(in_flight_) < limit_; }

  // Returns how many are in flight, this one included.
  std::uint32_t start() { return ++in_flight_; }

  // `in_flight`: what start() returned for it; so below.
  void finish_well(std::uint32_t in_flight) {
    --in_flight_;
    pressure_.record(in_flight, false);
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

  // It failed, and what else was in flight may be the reason.
  void record_failure(std::uint32_t in_flight) { pressure_.record(in_flight, true); }

  // For a failure that is no outage, while its request still counts. The window was unlimited until
  // the first, and what is in flight may still be growing: that is no reason to stay so small.
  void shrink(std::uint32_t in_flight) {
    const double before =
        limit_ < kUnlimited ? limit_ : std::max(kFirstLimit, static_cast<double>(in_flight_));
    const Remedy remedy = pressure_.remedy_at(in_flight);
    double change = -kStep;
    if (remedy == Remedy::kNone) change = kStep;
    if (remedy == Remedy::kFewer) change = -std::max(kStep, kGoodOfFailed / before);
    limit_ = std::max(1.0, before + change);
  }

  // Fewer requests fail less, and there can hardly be fewer: what is left is to pause.
  bool is_least() const { return limit_ < 2 && pressure_.remedy_at(1) == Remedy::kFewer; }

  double limit() const { return limit_; }
  std::uint32_t in_flight() const { return in_flight_; }

 private:
  static constexpr double kUnlimited = std::numeric_limits<double>::max();
  static constexpr double kFirstLimit = 64;  // what one reactor has at most in flight by default
  static constexpr double kStep = 0.25;
  static constexpr double kGoodOfFailed = 4;  // of five requests one may fail; each good adds 1 / n

  std::uint32_t in_flight_ = 0;
  PressureRecord pressure_;
  double limit_ = kUnlimited;
};

}  // namespace streamer
