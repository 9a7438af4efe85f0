// Writing past the page cache (O_DIRECT): the bytes of a part, wherever they lie, go through an
// aligned buffer of the thread's own. A file that is flushed before it is shown must reach the disk
// anyway; the page cache would only add the work of finding, filling and writing back each page.
//
// Guarantees: everything is written, or an error is returned. What is no multiple of 4096 at the
// end of a file, and all of a file that takes no direct writes, goes through the page cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace streamer {

// Writes one part of the file at `path`, which exists. With `is_direct`, the offset is a multiple
// of 4096 and no other part meets this one inside a page. Returns 0, or the errno of the failure.
int write_part(const std::string& path, std::span<const std::byte> part, std::uint64_t offset,
               bool is_direct);

// Reserves the room of a new file, so that a disk that is too small fails before a byte is written.
// Returns 0, also on a file system that cannot reserve, or the errno of the failure.
int reserve_room(const std::string& path, std::uint64_t size_bytes);

}  // namespace streamer
