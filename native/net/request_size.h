// How many bytes one request to an endpoint asks for: few if a request costs little, many if a
// request costs much.
//
// If a store waits before it answers, or limits the requests per second, requests of twice the size
// double the speed. Otherwise the speed stays the same, and small requests keep the bytes in flight
// in the processors' caches. The speed of all requests in flight shows which case applies. The size
// doubles as long as the speed grows. A larger size is tried again now and then, because a network
// changes (decision 0006).
//
// The first size follows from the wait for the first byte, because a load is short, and the first
// responses of a process are small. A later attempt goes as far as the last waits suggest. Earlier
// waits may have been for other objects.
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
  // With larger requests, only a few would be in flight at the end of a load.
  static constexpr std::uint64_t kMostBytes = std::uint64_t{8} << 20;

  std::uint64_t bytes() const { return bytes_; }

  // Whether even the quickest response started late.
  bool is_distant() const { return least_wait_s() > kDistantS; }
  // Returns how long the quickest response took to start; 0 if that is not known yet.
  double least_wait_s() const { return least_wait_s_.value_or(0); }

  // Records how long a response took to start, for a request of any size. Only the shortest wait
  // counts, because the others may have waited for a busy processor. The wait suggests a size only
  // until the first size was tried. Returns true if the size changes.
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

  // Records a request for `bytes` that was answered within `seconds`, without the time to connect.
  // `in_flight` requests were under way then, itself included. `wait_s` is the part of `seconds`
  // until the first byte. Ignores requests of another size. Returns true if the size changes.
  bool record(std::uint64_t bytes, double seconds, std::uint32_t in_flight, double wait_s = 0) {
    if (bytes != bytes_) return false;
    least_wait_of_samples_s_ = std::min(least_wait_of_samples_s_, wait_s);
    // By Little's law, this is the time in which the server answers one request. The total time of
    // a request would mislead: if requests queue at the server, it grows with their number, and
    // their number grows while a size is tried.
    samples_[count_++] = seconds / std::max(in_flight, 1U);
    if (count_ < kSamples) return false;
    count_ = 0;
    return decide(static_cast<double>(bytes_) / median());
  }

 private:
  static constexpr std::size_t kSamples = 16;  // enough for a median, because single times vary
  // If a request only waits, twice the size doubles the speed. If there is no wait, twice the size
  // changes nothing. At S3's usual 30 ms and 90 MB/s, 8 MiB are 1.24 times as fast as 4 MiB. A
  // smaller gain is noise.
  static constexpr double kGain = 1.15;
  // A server nearby starts to answer within a millisecond, a store after some 10 to 100 ms.
  static constexpr double kDistantS = 0.005;
  // Bytes of a request per second of wait. At S3's 90 MB/s for each connection, a fifth of the time
  // of a request is then waiting.
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
  std::uint64_t settled_bytes_ = kFirstBytes;  // the best size so far
  double settled_speed_ = 0;                   // bytes per second with that size
  std::optional<double> least_wait_s_;         // wait for the first byte of a response
  double least_wait_of_samples_s_ = kNever;
  unsigned rest_ = 0;
  unsigned next_rest_ = kFirstRest;
  std::array<double, kSamples> samples_{};
  std::size_t count_ = 0;
};

}  // namespace streamer
