// Reads past the page cache (O_DIRECT). Offsets, addresses and lengths of such reads must be
// multiples of 4096 (kDirectAlignmentBytes, whatever the page size). Bytes with this alignment are
// read into place, others through a buffer of the thread.
//
// The arena gives large tensors addresses that equal their offset in the file modulo 4096, and
// blocks in pinned slots are placed the same way. So only the ends of a tensor or block pass
// through the buffer.
#pragma once

#include <sys/types.h>

#include "io/read_call.h"
#include "io/read_ring.h"
#include "plan/segment_cursor.h"

namespace streamer {

// Reads bytes of the file from `offset` on to the place of the cursor, with one system call, or
// with several at a time if there is a ring. Returns the number of bytes read, 0 at the end of the
// file, or -1 with errno. EINVAL: the file system refuses the alignment. ENOMEM: there is no memory
// for the buffer. EAGAIN: the ring failed. After a failure the thread no longer has a ring.
ssize_t read_direct(const ReadCall& read_call, ReadRing* ring, int descriptor, SegmentCursor cursor,
                    off_t offset);

}  // namespace streamer
