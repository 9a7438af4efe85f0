// Whether a byte of a file is in the page cache, so that a read needs no disk.
//
// preadv2(2) with RWF_NOWAIT reports this on most local file systems, whoever owns the file. The
// alternatives are wrong for some files. For another user's file, mincore(2) reports all pages as
// cached, and cachestat(2) refuses. On overlayfs (the files of a container's image), cachestat(2)
// finds no pages. If the file system does not support RWF_NOWAIT, like overlayfs, the byte is read.
// It was in memory if the read caused no disk input and took almost no time.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <functional>

namespace streamer {

// preadv2(2), or a replacement in tests.
using FlaggedReadCall = std::function<ssize_t(int descriptor, const iovec* vectors, int count,
                                              off_t offset, int flags)>;

// Whether the byte at `offset` is in the page cache. The call also makes the kernel read its page,
// and megabytes after it unless the descriptor has the advice that access is random. Returns false
// on any error, because the reader of the byte will report the error.
bool is_cached(int descriptor, off_t offset, const FlaggedReadCall& read = preadv2);

// Whether all bytes from `begin` to `end` are probably in the page cache, which holds files in long
// consecutive parts. Checks the first byte, the last byte and a random byte of each quarter. The
// places are random because each check reads its page into the cache, and a later check must not
// find that page.
bool is_range_cached(int descriptor, off_t begin, off_t end);

// Opens the file of this descriptor a second time, for reads through the page cache, and advises
// the kernel that access is random. Returns -1 with errno on failure.
int open_through_cache(int descriptor);

}  // namespace streamer
