// Whether an open file lies in a folder after all links to both are resolved.
//
// The check uses the paths that the kernel reports for the two open descriptors, because a link
// could be exchanged between a check of a path and its opening. Two mounts may have the same paths.
// So the file must also have the device and inode of the file that the path leads to, starting at
// the open folder.
#pragma once

#include <string>

namespace streamer {

// Returns false if the folder cannot be opened.
bool lies_inside(int file, const std::string& folder);

}  // namespace streamer
