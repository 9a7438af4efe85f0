// The kinds of readers. Each kind has its own queue.
#pragma once

#include <cstddef>
#include <cstdint>

namespace streamer {

enum class Lane : std::uint8_t { kFile, kHttp, kPython, kNfs };
inline constexpr std::size_t kLaneCount = 4;

}  // namespace streamer
