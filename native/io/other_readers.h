// Whether another reader of the engine's, in any process of this machine, reads a file now.
//
// One reader alone is fastest past the page cache; of eight ranks, each would then fetch the whole
// file from the disk. So each marks the file that it has open, and looks for other marks. A mark is
// a read lock (fcntl(2), F_OFD_SETLK) on one byte far behind any file's end: it ends with the open
// file, however its process ends, and keeps nobody from anything but a write lock on that byte. It
// is seen through any path, and in other containers with the same file system.
#pragma once

namespace streamer {

// Where the file system has no locks, nothing is marked, and no mark is found.
void mark_as_read(int descriptor);

// A mark of another open file; of other threads of this process, too, if they opened it themselves.
bool has_other_readers(int descriptor);

}  // namespace streamer
