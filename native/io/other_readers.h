// Whether another reader of the engine's, in any process of this machine, reads a file now.
//
// A single reader is fastest past the page cache, but eight ranks would then each fetch the whole
// file from the disk. So each reader marks the file that it has open, and looks for other marks. A
// mark is a read lock (fcntl(2), F_OFD_SETLK) on one byte far beyond the end of any file. It
// disappears with the open file, however its process ends, and only prevents a write lock on that
// byte. It is visible through any path, and in other containers with the same file system.
#pragma once

namespace streamer {

// Without locks in the file system, no file is marked, and no mark is found.
void mark_as_read(int descriptor);

// Whether another open file has a mark; this includes files that other threads of this process
// opened themselves.
bool has_other_readers(int descriptor);

}  // namespace streamer
