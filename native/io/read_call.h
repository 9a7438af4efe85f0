// The system call that reads files.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstdint>
#include <functional>

namespace streamer {

// preadv2(2) without flags. Tests replace it, because they need errors that no disk produces on
// demand.
using ReadCall =
    std::function<ssize_t(int descriptor, const iovec* vectors, int count, off_t offset)>;

// The most bytes that one call reads. A read from a slow disk can be cancelled well within a
// second, because each call is small.
inline constexpr std::uint64_t kBytesPerCall = std::uint64_t{2} << 20;

}  // namespace streamer
