// How many bytes one request to an endpoint asks for: few where a request costs little, many where
// each costs much.
//
// A store that thinks before it answers, or that answers only so many requests a second, brings
// twice as much with requests of twice the size. One that does not brings no more, and small
// requests keep what is on its way in the processors' caches. Which of the two it is shows in what
// all requests in flight bring per second: the size doubles as long as that is more, and is tried
// again now and then, because a network changes. (decision 0006) It starts where the wait for the
// first byte suggests: a load is short, and the first answers of a process are to small requests.
// An attempt goes as far as the last waits suggest: earlier ones may have been for other objects.
//
// Not thread-safe; Endpoint calls it under its lock.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

namespace streamer {

class RequestSize {
 public:
  static constexpr std::uint64_t kFirstBytes = std::uint64_t{1} << 20;
  static constexpr std::uint64_t kMostBytes = std::uint64_t{8}
                                              << 20;  // beyond, the end of a load waits for few

  std::uint64_t bytes() const { return bytes_; }

  // No answer began soon.
  bool is_distant() const { return least_wait_s() > kDistantS; }
  // How long the quickest answer took to begin; zero while unknown.
  double least_wait_s() const { return least_wait_s_.value_or(0); }

  // An answer, to a request of any size, began so long after it was asked for. Only the least wait
  // counts, as where processors are busy all others wait for them; and it suggests a size only
  // until one was tried. True when the size is another one from here on.
  bool record_wait(double seconds) {
    if (least_wait_s_ && seconds >= *least_wait_s_) return false;
    least_wait_s_ = seconds;
    if (settled_speed_ > 0) return false;
    const std::uint64_t bytes = suggested_by(seconds);
    if (bytes == bytes_) return false;
    bytes_ = settled_bytes_ = bytes;
    count_ = 0;
    least_wait_of_samples_s_ = kNever;
    return true;
  }

  // A request for `bytes` was answered within `seconds`, making the connection not included, while
  // `in_flight` were under way, itself included. True when the size is another one from here on.
  // Requests of another size tell nothing. `wait_s`: of these seconds, until the first byte came.
  bool record(std::uint64_t bytes, double seconds, std::uint32_t in_flight, double wait_s = 0) {
    if (bytes != bytes_) return false;
    least_wait_of_samples_s_ = std::min(least_wait_of_samples_s_, wait_s);
    // By Little's law the server answers one in so many seconds. The time of a request alone would
    // not do: where they queue at the server it grows with each that is added, and more are added
    // while the size is tried.
    samples_[count_++] = seconds / std::max(in_flight, 1U);
    if (count_ < kSamples) return false;
    count_ = 0;
    return decide(static_cast<double>(bytes_) / median());
  }

 private:
  static constexpr std::size_t kSamples = 16;  // some requests in flight wait for others
  // Twice the size brings twice as much where the wait is everything, no more where there is none,
  // 1.24 as much at S3's usual 30 ms and 90 MB/s from 4 MiB to 8. Less is noise.
  static constexpr double kGain = 1.15;
  // A server nearby begins within a millisecond, a store after some 10 to 100.
  static constexpr double kDistantS = 0.005;
  // Per second of wait: a fifth of a request's time is waiting at S3's 90 MB/s for each connection.
  static constexpr double kWaitedBytes = 4 * 90e6;
  static constexpr unsigned kFirstRest = 8;  // times kSamples requests until the next attempt
  static constexpr unsigned kLongestRest = 64;
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  static std::uint64_t suggested_by(double wait_s) {
    const double bytes = std::min(wait_s * kWaitedBytes, static_cast<double>(kMostBytes));
    return std::max(std::bit_floor(static_cast<std::uint64_t>(bytes)), kFirstBytes);
  }

  bool decide(double bytes_per_second) {
    const std::uint64_t suggested = suggested_by(std::exchange(least_wait_of_samples_s_, kNever));
    const bool is_attempt = bytes_ > settled_bytes_;
    if (is_attempt && bytes_per_second < settled_speed_ * kGain) {
      bytes_ = settled_bytes_;
      rest_ = next_rest_;
      next_rest_ = std::min(next_rest_ * 2, kLongestRest);
      return true;
    }
    settled_bytes_ = bytes_;
    settled_speed_ = bytes_per_second;
    if (bytes_ == kMostBytes || (!is_attempt && rest_ > 0 && rest_-- > 0)) return false;
    bytes_ = std::max(bytes_ * 2, suggested);
    return true;
  }

  double median() {
    std::nth_element(samples_.begin(), samples_.begin() + kSamples / 2, samples_.end());
    return std::max(samples_[kSamples / 2], 1e-9);
  }

  std::uint64_t bytes_ = kFirstBytes;
  std::uint64_t settled_bytes_ = kFirstBytes;  // the best that is known
  double settled_speed_ = 0;                   // bytes per second with that size
  std::optional<double> least_wait_s_;         // for the first byte of an answer
  double least_wait_of_samples_s_ = kNever;
  unsigned rest_ = 0;
  unsigned next_rest_ = kFirstRest;
  std::array<double, kSamples> samples_{};
  std::size_t count_ = 0;
};

}  // namespace streamer
