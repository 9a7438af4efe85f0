// The share of the latest requests that failed, and how many failures in a row it explains.
//
// A server may refuse half of all requests at random, for example if one of the two servers behind
// an address is broken. Three failures in a row are common then, and do not mean that the server is
// down. If a share p of all requests fails, n failures in a row have the probability p^n.
//
// Pure. Not thread-safe; Outage owns it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace streamer {

class FailureShare {
 public:
  void record(bool is_failure) {
    failed_ = failed_ * kKept + (is_failure ? 1 : 0);
    all_ = all_ * kKept + 1;
  }

  // Returns the share of failed requests, between 0 and 1.
  double value() const { return std::min(failed_ / all_, kMost); }

  // Returns how many times longer a row of failures must be to be as unlikely as with the usual
  // share.
  double row_factor() const {
    return std::clamp(std::log(kUsual) / std::log(value()), 1.0, kLongestRow);
  }

 private:
  static constexpr double kKept = 1 - 1.0 / 64;  // per request: about the latest 64 requests count
  static constexpr double kMost = 0.99;          // with 1, no row would ever be long enough
  static constexpr double kUsual = 0.04;         // three failures in a row: 1 in 16 000
  static constexpr double kLongestRow = 16;      // if four in five fail, the server hardly works

  // The initial share counts as eight requests, so that a few failures at the beginning do not
  // decide.
  double all_ = 8;
  double failed_ = kUsual * 8;
};

}  // namespace streamer
