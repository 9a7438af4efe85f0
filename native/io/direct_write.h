// Writes past the page cache (O_DIRECT). The bytes of a part may have any address: they are copied
// through an aligned buffer of the thread. A file that is flushed before it becomes visible must
// reach the disk anyway. The page cache would only add the work of looking up, filling and writing
// back each page.
//
// Guarantees: everything is written, or an error is returned. Two kinds of bytes go through the
// page cache: the end of a file after the last multiple of 4096, and all of a file that does not
// support direct writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace streamer {

// Writes one part of the existing file at `path`. If `is_direct` is set, the offset must be a
// multiple of 4096, and no other part may share a page with this one. Returns 0, or the errno of
// the failure.
int write_part(const std::string& path, std::span<const std::byte> part, std::uint64_t offset,
               bool is_direct);

// Reserves the room of a new file, so that a disk that is too small fails before any byte is
// written. Returns 0, also on a file system that cannot reserve room, or the errno of the failure.
int reserve_room(const std::string& path, std::uint64_t size_bytes);

}  // namespace streamer
