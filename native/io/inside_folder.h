// Whether an open file lies in a folder, whatever links led to either of them.
//
// The kernel is asked where the two descriptors lead: between a look at a path and its opening a
// link could be exchanged. As two mounts may have the same paths, the file must also be the one
// that is found from the open folder, by device and inode.
#pragma once

#include <string>

namespace streamer {

// False as well if the folder cannot be opened.
bool lies_inside(int file, const std::string& folder);

}  // namespace streamer
