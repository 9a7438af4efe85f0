// The system call that reads files.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstdint>
#include <functional>

namespace streamer {

// preadv2(2) without flags, or a replacement in tests, which need errors that no disk produces on
// demand.
using ReadCall =
    std::function<ssize_t(int descriptor, const iovec* vectors, int count, off_t offset)>;

// The most bytes of one call: few enough that cancelling a read from a slow disk takes well under a
// second.
inline constexpr std::uint64_t kBytesPerCall = std::uint64_t{2} << 20;

}  // namespace streamer
