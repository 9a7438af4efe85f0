#include "io/direct_read.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "io/arena.h"

namespace streamer {
namespace {

// As a huge page: what lies in one goes through the buffer anyway, because smaller tensors are not
// aligned.
constexpr std::uint64_t kBufferBytes = std::uint64_t{1} << 20;
// A run that is shorter is not worth a call of its own.
constexpr std::uint64_t kLeastInPlace = 64 << 10;

std::uint64_t round_down(std::uint64_t value) { return value / kPageBytes * kPageBytes; }
std::uint64_t round_up(std::uint64_t value) { return round_down(value + kPageBytes - 1); }

bool is_in_step(const std::byte* address, std::uint64_t offset) {
  return reinterpret_cast<std::uintptr_t>(address) % kPageBytes == offset % kPageBytes;
}

// Whether the bytes from `offset` on, which go to `piece`, can be read into place from the next
// page on.
bool fits_in_place(const Segment& piece, std::uint64_t offset) {
  return piece.target != nullptr && is_in_step(piece.target, offset) &&
         piece.size >= kLeastInPlace + kPageBytes;
}

// How many bytes from `offset` on must pass through the buffer, as far as it goes.
std::uint64_t bytes_to_buffer(SegmentCursor cursor, std::uint64_t offset) {
  const std::uint64_t room = kBufferBytes - offset % kPageBytes;
  std::uint64_t bytes = 0;
  while (!cursor.is_at_end() && bytes < room) {
    const Segment piece = cursor.piece();
    if (fits_in_place(piece, offset + bytes)) {
      bytes += round_up(offset + bytes) - (offset + bytes);
      break;
    }
    bytes += piece.size;
    cursor.skip(piece.size);
  }
  return std::min(bytes, room);
}

std::byte* buffer() {
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  static thread_local std::unique_ptr<std::byte, Free> memory;
  if (!memory) memory.reset(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, kBufferBytes)));
  return memory.get();
}

}  // namespace

ssize_t read_direct(const ReadCall& read_call, int descriptor, SegmentCursor cursor, off_t offset) {
  const auto begin = static_cast<std::uint64_t>(offset);
  const Segment piece = cursor.piece();
  if (begin % kPageBytes == 0 && fits_in_place(piece, begin)) {
    const iovec vector{piece.target, round_down(std::min(piece.size, kBytesPerCall))};
    return read_call(descriptor, &vector, 1, offset);
  }
  std::byte* const memory = buffer();
  if (memory == nullptr) {
    errno = ENOMEM;
    return -1;
  }
  const std::uint64_t page = round_down(begin);
  const std::uint64_t ahead = begin - page;  // read, and not wanted
  const std::uint64_t wanted = bytes_to_buffer(cursor, begin);
  const iovec vector{memory, round_up(ahead + wanted)};
  const ssize_t got = read_call(descriptor, &vector, 1, static_cast<off_t>(page));
  if (got < 0) return got;
  const auto size = static_cast<std::uint64_t>(got);
  if (size <= ahead) return 0;
  return static_cast<ssize_t>(cursor.copy(memory + ahead, std::min(size - ahead, wanted)));
}

}  // namespace streamer
