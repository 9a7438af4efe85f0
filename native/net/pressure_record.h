// Whether fewer requests of a server fail if fewer are in flight.
//
// A server with a limit of requests per second answers a fixed number of requests: with half as
// many in flight, it answers twice the share. A server that fails at random always answers the same
// share. Fewer requests at a time do not help then, and only slow the load down.
//
// Pure. Not thread-safe; RequestWindow owns it.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace streamer {

// Whether fewer requests at a time would reduce the failures.
enum class Remedy : std::uint8_t { kUnknown, kNone, kFewer };

class PressureRecord {
 public:
  // `in_flight`: the number of requests under way when this one was sent, itself included.
  void record(std::uint32_t in_flight, bool is_failure) {
    Level& level = levels_[level_of(in_flight)];
    if (level.all >= kRemembered) level = {.good = level.good / 2, .all = level.all / 2};
    level.good += is_failure ? 0 : 1;
    level.all += 1;
  }

  // Compares the failures at `in_flight` requests with the failures at twice as many or more.
  Remedy remedy_at(std::uint32_t in_flight) const {
    const std::size_t index = level_of(in_flight);
    const Level& here = levels_[index];
    Level above;
    for (std::size_t higher = index + 1; higher < levels_.size(); ++higher) {
      above.good += levels_[higher].good;
      above.all += levels_[higher].all;
    }
    if (here.all < kEnough || above.all < kEnough) return Remedy::kUnknown;
    const bool is_better = here.good * above.all >= kGain * above.good * here.all;
    return is_better ? Remedy::kFewer : Remedy::kNone;
  }

 private:
  struct Level {
    double good = 0;
    double all = 0;
  };
  // Powers of two: up to 2048 in flight, and one level for more.
  static constexpr std::size_t kLevels = 12;
  // Requests per level; older ones do not count, because a server changes.
  static constexpr double kRemembered = 256;
  static constexpr double kEnough = 32;  // with fewer requests, a share says little
  // Half as many requests should double the share; a smaller gain is chance.
  static constexpr double kGain = 1.2;

  static std::size_t level_of(std::uint32_t in_flight) {
    return std::min<std::size_t>(static_cast<std::size_t>(std::bit_width(in_flight)), kLevels - 1);
  }

  std::array<Level, kLevels> levels_{};
};

}  // namespace streamer
