// Whether another reader of the engine, in any process of this machine, reads a file now.
//
// A single reader is fastest past the page cache, but eight ranks would then each fetch the whole
// file from the disk. So each reader marks its open file, and looks for the marks of others. A mark
// is a read lock (fcntl(2), F_OFD_SETLK) on one byte far beyond the end of any file. The mark
// disappears when the open file is closed, however its process ends. It only prevents a write lock
// on that byte. It is visible through any path, and in other containers with the same file system.
#pragma once

namespace streamer {

// Marks the open file. If the file system has no locks, no file is marked, and no mark is found.
void mark_as_read(int descriptor);

// Whether another open file has a mark. This includes files that other threads of this process
// opened separately.
bool has_other_readers(int descriptor);

}  // namespace streamer
