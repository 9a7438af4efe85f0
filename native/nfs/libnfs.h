// libnfs in the one form the engine speaks to, whichever of its two interfaces is installed.
//
// Until libnfs 5, data of a read arrives in the callback, to be copied; since libnfs 6
// (LIBNFS_API_V2) it is put where the caller says. Only the former has been run: no distribution at
// hand ships 6.
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

inline int ask_bytes(nfs_context* context, nfsfh* file, std::byte* buffer, std::uint64_t offset,
                     std::uint64_t size, nfs_cb answer, void* argument) {
  return nfs_pread_async(context, file, buffer, static_cast<std::size_t>(size), offset, answer,
                         argument);
}

#else

inline constexpr bool kLibnfsFillsBuffers = false;

inline int ask_bytes(nfs_context* context, nfsfh* file, std::byte* /*buffer*/, std::uint64_t offset,
                     std::uint64_t size, nfs_cb answer, void* argument) {
  return nfs_pread_async(context, file, offset, size, answer, argument);
}

#endif

}  // namespace streamer
