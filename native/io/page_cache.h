// Whether a byte of a file is in the page cache: reading it from there costs a copy and no disk.
//
// preadv2(2) with RWF_NOWAIT tells on most local file systems, whoever owns the file. mincore(2)
// calls all pages of another user's file cached, cachestat(2) refuses it, and on overlayfs (the
// files of a container's image) it finds none. Where the file system does not know RWF_NOWAIT, as
// overlayfs, a byte was in memory if reading it took no disk and no time.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <functional>

namespace streamer {

// preadv2(2); another in tests.
using FlaggedReadCall = std::function<ssize_t(int descriptor, const iovec* vectors, int count,
                                              off_t offset, int flags)>;

// Also makes the kernel read the page, and megabytes behind it unless the descriptor was advised
// that access is random. False on any error: whoever reads the byte will meet it.
bool is_cached(int descriptor, off_t offset, const FlaggedReadCall& read = preadv2);

// Whether all bytes from `begin` to `end` are likely to be in the page cache, which holds files in
// long runs: the first and the last one, and one of each quarter, at other places each time. A look
// leaves its page behind, so that the same places would be found cached the next time.
bool is_range_cached(int descriptor, off_t begin, off_t end);

// Opens once more what this descriptor has open, to be read through the page cache, and advises
// the kernel that access is random. -1 with errno.
int open_through_cache(int descriptor);

}  // namespace streamer
