// Hides the difference between the two interfaces of libnfs.
//
// Before libnfs 6, the data of a read arrives in the callback and must be copied. Since libnfs 6
// (LIBNFS_API_V2), libnfs writes the data to the caller's buffer. Only the older interface is
// tested, because no available distribution has libnfs 6.
#pragma once

// clang-format off
#include <sys/time.h>  // libnfs uses struct timeval without including it
#include <nfsc/libnfs.h>
// clang-format on

#include <cstddef>
#include <cstdint>

namespace streamer {

#ifdef LIBNFS_API_V2

inline constexpr bool kLibnfsFillsBuffers = true;

inline int request_bytes(nfs_context* context, nfsfh* file, std::byte* buffer, std::uint64_t offset,
                         std::uint64_t size, nfs_cb answer, void* argument) {
  return nfs_pread_async(context, file, buffer, static_cast<std::size_t>(size), offset, answer,
                         argument);
}

#else

inline constexpr bool kLibnfsFillsBuffers = false;

inline int request_bytes(nfs_context* context, nfsfh* file, std::byte* /*buffer*/,
                         std::uint64_t offset, std::uint64_t size, nfs_cb answer, void* argument) {
  return nfs_pread_async(context, file, offset, size, answer, argument);
}

#endif

}  // namespace streamer
