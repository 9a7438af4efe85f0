// The times of the last requests to an endpoint, to recognize a slow request.
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

  // Returns the 95th percentile of the last requests, or three times the median if that is less. If
  // more than a twentieth of the requests are slow, the 95th percentile is itself slow. Returns
  // nothing while there are too few requests.
  std::optional<double> slow_after() const {
    if (count_ < kFewest) return slow_before_;
    return std::min(percentile(95), kTail * percentile(50));
  }

  // Starts anew, because requests have `times_the_size` their last size from now on. Until enough
  // new requests are recorded, the last limit holds. For a larger size, the last limit is
  // multiplied. For a smaller size it is unchanged, because requests in flight are still larger.
  void start_over(double times_the_size) {
    if (const auto last = slow_after()) slow_before_ = *last * std::max(times_the_size, 1.0);
    next_ = count_ = 0;
  }

 private:
  double percentile(std::size_t percent) const {
    std::array<double, kMost> sorted = samples_;
    const std::size_t index = count_ * percent / 100;
    std::nth_element(sorted.begin(), sorted.begin() + index, sorted.begin() + count_);
    return sorted[index];
  }

  static constexpr double kTail = 3;
  static constexpr std::size_t kMost = 128;   // a few seconds of a load, not more: networks change
  static constexpr std::size_t kFewest = 20;  // with fewer, the percentile is the slowest one

  std::optional<double> slow_before_;  // the limit at the last start_over()
  std::array<double, kMost> samples_{};
  std::size_t next_ = 0;
  std::size_t count_ = 0;
};

}  // namespace streamer
