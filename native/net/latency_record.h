// How long the last requests to an endpoint took, so that a slow one is known as slow.
//
// Not thread-safe; Endpoint calls it under its lock.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>

namespace streamer {

class LatencyRecord {
 public:
  void add(double seconds) {
    samples_[next_] = seconds;
    next_ = (next_ + 1) % kMost;
    count_ = std::min(count_ + 1, kMost);
  }

  // What 95 in 100 of the last requests stayed below; nothing before there are enough of them to
  // tell.
  std::optional<double> percentile_95() const {
    if (count_ < kFewest) return std::nullopt;
    std::array<double, kMost> sorted = samples_;
    const std::size_t index = count_ * 95 / 100;
    std::nth_element(sorted.begin(), sorted.begin() + index, sorted.begin() + count_);
    return sorted[index];
  }

 private:
  static constexpr std::size_t kMost = 128;   // seconds of a load: the network may change
  static constexpr std::size_t kFewest = 20;  // below, the 95th percentile is the longest itself

  std::array<double, kMost> samples_{};
  std::size_t next_ = 0;
  std::size_t count_ = 0;
};

}  // namespace streamer
