// The number of requests that may be in flight to one endpoint after an outage or a throttle.
//
// The window follows additive increase, multiplicative decrease (RFC 5681's rule for TCP, applied
// to requests). It is unlimited until the first outage. Then it is half of the number in flight,
// and grows by one for every round without failures.
//
// One failure among many good responses shrinks the window by a quarter of a request. So a round
// that fails as a whole takes a quarter of the window, and a round with few failures takes little
// (DCTCP's rule, RFC 8257). The window settles at the size at which a share of 4 / window of the
// requests fails. Halving the window for each round with a refusal would be too much. If one
// request in twenty is refused at random, five of 64 would be left in flight, although the server
// can do more.
//
// Whether fewer requests fail less is observed (pressure_record.h). If requests fail at random,
// fewer requests do not help, and a failure enlarges the window by a quarter instead. If fewer
// requests help, a small window shrinks by more than a quarter, so that it settles where one in
// five fails.
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

  // Returns the number of requests in flight, including this one.
  std::uint32_t start() { return ++in_flight_; }

  // `in_flight`, here and below, is the number that start() returned for the request.
  void finish_well(std::uint32_t in_flight) {
    --in_flight_;
    pressure_.record(in_flight, false);
    if (limit_ < kUnlimited) limit_ += 1 / limit_;
  }

  // Records a failure, or a request that was abandoned.
  void finish_otherwise() { --in_flight_; }

  // Call once for each outage, while the requests that were sent before it still count. A single
  // request in flight, such as the last of a load, was not too much, so the limit stays.
  void halve() {
    if (in_flight_ <= 1) return;
    limit_ = std::max(1.0, std::min(limit_, static_cast<double>(in_flight_)) / 2);
  }

  // Records that a request failed, possibly because of the others in flight.
  void record_failure(std::uint32_t in_flight) { pressure_.record(in_flight, true); }

  // Shrinks the window after a failure without an outage. Call while the failed request still
  // counts. Before the first failure there is no limit, and the number in flight may still be
  // growing. So the first limit is at least kFirstLimit.
  void shrink(std::uint32_t in_flight) {
    const double before =
        limit_ < kUnlimited ? limit_ : std::max(kFirstLimit, static_cast<double>(in_flight_));
    const Remedy remedy = pressure_.remedy_at(in_flight);
    double change = -kStep;
    if (remedy == Remedy::kNone) change = kStep;
    if (remedy == Remedy::kFewer) change = -std::max(kStep, kGoodOfFailed / before);
    limit_ = std::max(1.0, before + change);
  }

  // Whether fewer requests fail less, but the number can hardly be lowered. Only a pause helps
  // then.
  bool is_least() const { return limit_ < 2 && pressure_.remedy_at(1) == Remedy::kFewer; }

  double limit() const { return limit_; }
  std::uint32_t in_flight() const { return in_flight_; }

 private:
  static constexpr double kUnlimited = std::numeric_limits<double>::max();
  static constexpr double kFirstLimit = 64;  // the default limit of one reactor
  static constexpr double kStep = 0.25;
  static constexpr double kGoodOfFailed = 4;  // one of five may fail; each good response adds 1 / n

  std::uint32_t in_flight_ = 0;
  PressureRecord pressure_;
  double limit_ = kUnlimited;
};

}  // namespace streamer
