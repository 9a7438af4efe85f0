// Which share of the latest requests failed, and how many failures in a row that explains.
//
// A server may refuse half of all requests at random, for example if one of the two servers behind
// an address is sick. Three failures in a row are common then, and do not mean that the server is
// away: if a share p of all requests fails, n failures in a row have the probability p^n.
//
// Pure. Not thread-safe; Outage keeps it.
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

  // Of the latest requests: between 0 and 1.
  double value() const { return std::min(failed_ / all_, kMost); }

  // How many times longer a row of failures must be to be as unlikely as with the usual share.
  double row_factor() const {
    return std::clamp(std::log(kUsual) / std::log(value()), 1.0, kLongestRow);
  }

 private:
  static constexpr double kKept = 1 - 1.0 / 64;  // about the latest 64 requests count
  static constexpr double kMost = 0.99;          // rounding would make it 1, and a row endless
  static constexpr double kUsual = 0.04;         // three in a row are then one in 16 000
  static constexpr double kLongestRow = 16;      // four in five fail: hardly a server that works

  // Weighs as much as eight requests: a few failures at the beginning are no share of a server.
  double all_ = 8;
  double failed_ = kUsual * 8;
};

}  // namespace streamer
