// Reading past the page cache (O_DIRECT), whose offsets, addresses and lengths must be multiples of
// 4096 (kDirectAlignmentBytes, whatever the size of a page): into place where the bytes lie so,
// else through a buffer of the thread's own.
//
// The arena gives large tensors addresses that equal their offset in the file modulo 4096, and a
// block lies so in its slot of pinned memory: only the ends pass through the buffer.
#pragma once

#include <sys/types.h>

#include "io/read_call.h"
#include "io/read_ring.h"
#include "plan/segment_cursor.h"

namespace streamer {

// Reads bytes of the file from `offset` on to where the cursor points: by one system call, or by
// several at a time where there is a ring.
// Returns how many are there now, 0 at the end of the file, or -1 with errno: EINVAL where the file
// system wants something else, ENOMEM where there is no memory for the buffer, EAGAIN where the
// ring failed, which the thread has no longer.
ssize_t read_direct(const ReadCall& read_call, ReadRing* ring, int descriptor, SegmentCursor cursor,
                    off_t offset);

}  // namespace streamer
