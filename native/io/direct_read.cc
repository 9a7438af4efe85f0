#include "io/direct_read.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <vector>

#include "io/arena.h"

namespace streamer {
namespace {

// With smaller calls, the disk is idle for less time: 512 KiB were 7 to 10 % faster than 2 MiB. 256
// KiB were no faster than 512 KiB, and took more processor time (decision 0011).
constexpr std::uint64_t kBytesPerDirectCall = std::uint64_t{512} << 10;
static_assert(kBytesPerDirectCall <= kBytesPerCall);
constexpr std::size_t kBufferBytes = ReadRing::kMostReads * kBytesPerDirectCall;
static_assert(kBufferBytes == kLargeStepBytes);
// The number of calls in one submission to a ring, so that the disk has work while the result of a
// call is processed. This number of calls reads a block of the usual size.
constexpr std::size_t kMostCalls = 16;
// A shorter range is not worth its own part.
constexpr std::uint64_t kLeastInPlace = 64 << 10;
constexpr std::size_t kMostParts = 16;  // a call can hold this many of the shortest parts

std::uint64_t round_down(std::uint64_t value) {
  return value / kDirectAlignmentBytes * kDirectAlignmentBytes;
}
std::uint64_t round_up(std::uint64_t value) {
  return round_down(value + kDirectAlignmentBytes - 1);
}

bool is_in_step(const std::byte* address, std::uint64_t offset) {
  return reinterpret_cast<std::uintptr_t>(address) % kDirectAlignmentBytes ==
         offset % kDirectAlignmentBytes;
}

// Whether bytes from `offset` on can be read straight into the destination `piece`, starting at the
// next aligned offset.
bool fits_in_place(const Segment& piece, std::uint64_t offset) {
  return piece.target != nullptr && is_in_step(piece.target, offset) &&
         piece.size >= kLeastInPlace + kDirectAlignmentBytes;
}

// Returns how many bytes from `offset` on must pass through the buffer, at most `room`.
std::uint64_t bytes_to_buffer(SegmentCursor cursor, std::uint64_t offset, std::uint64_t room) {
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

// Returns this thread's buffer. It is one huge page, which costs one page fault instead of 512.
// Returns null if there is no memory.
std::byte* buffer() {
  struct Unmap {
    void operator()(std::byte* memory) const { munmap(memory, kBufferBytes); }
  };
  static thread_local std::unique_ptr<std::byte, Unmap> memory;
  if (!memory) memory.reset(map_huge(kBufferBytes));
  return memory.get();
}

// Consecutive bytes within one call, with an aligned begin and end.
struct Part {
  SegmentCursor cursor;  // at the first wanted byte
  std::byte* memory;
  std::uint64_t bytes;
  std::uint64_t ahead;   // bytes that are read before the first wanted byte
  std::uint64_t wanted;  // number of wanted bytes
  bool is_buffered;
};

struct Call {
  std::vector<Part> parts;
  std::vector<iovec> vectors;
  off_t offset = 0;
  std::uint64_t wanted = 0;
  std::uint64_t buffered = 0;
};

// Plans one call. It reads the ends of tensors through the buffer, and the bytes between the ends
// into place. A separate call for each end would wait in the disk's queue as long as a call for
// megabytes.
Call plan_call(SegmentCursor cursor, std::uint64_t position, std::byte* memory) {
  Call call;
  call.offset = static_cast<off_t>(round_down(position));
  std::uint64_t planned = 0;
  while (!cursor.is_at_end() && planned < kBytesPerDirectCall && call.parts.size() < kMostParts) {
    const Segment piece = cursor.piece();
    const std::uint64_t ahead = position % kDirectAlignmentBytes;
    const std::uint64_t room = kBytesPerDirectCall - planned;
    if (ahead == 0 && fits_in_place(piece, position)) {
      const std::uint64_t bytes = round_down(std::min(piece.size, room));
      call.parts.push_back({cursor, piece.target, bytes, 0, bytes, false});
    } else {
      const std::uint64_t wanted = bytes_to_buffer(cursor, position, room - ahead);
      const std::uint64_t bytes = round_up(ahead + wanted);
      call.parts.push_back({cursor, memory + call.buffered, bytes, ahead, wanted, true});
      call.buffered += bytes;
    }
    const Part& part = call.parts.back();
    call.vectors.push_back({part.memory, part.bytes});
    call.wanted += part.wanted;
    planned += part.bytes;
    position += part.wanted;
    if (position % kDirectAlignmentBytes != 0) break;  // the rest of this unit is not wanted
    cursor.skip(part.wanted);
  }
  return call;
}

// Plans at most `most` consecutive calls, and stops when the buffer's `memory` is full.
std::vector<Call> plan_calls(SegmentCursor cursor, std::uint64_t position, std::byte* memory,
                             std::size_t most) {
  std::vector<Call> calls;
  std::uint64_t buffered = 0;
  while (!cursor.is_at_end() && calls.size() < most &&
         buffered + kBytesPerDirectCall <= kBufferBytes) {
    calls.push_back(plan_call(cursor, position, memory + buffered));
    buffered += calls.back().buffered;
    position += calls.back().wanted;
    cursor.skip(calls.back().wanted);
  }
  return calls;
}

std::vector<RingRead> make_reads(const ReadCall& read_call, ReadRing* ring, int descriptor,
                                 const std::vector<Call>& calls) {
  std::vector<RingRead> reads;
  for (const Call& call : calls) {
    const auto count = static_cast<unsigned>(call.vectors.size());
    reads.push_back({descriptor, call.vectors.data(), count, call.offset});
  }
  if (ring != nullptr) {
    ring->read(reads);
    return reads;
  }
  for (RingRead& read : reads) {
    const auto count = static_cast<int>(read.vector_count);
    read.result = read_call(descriptor, read.vectors, count, read.offset);
    if (read.result < 0) read.result = -errno;
  }
  return reads;
}

// Copies the buffered bytes to their place, and returns how many wanted bytes were read.
std::uint64_t settle(std::vector<Part>& parts, std::uint64_t read) {
  std::uint64_t settled = 0;
  for (Part& part : parts) {
    const std::uint64_t here = std::min(read, part.bytes);
    const std::uint64_t useful = here < part.ahead ? 0 : std::min(here - part.ahead, part.wanted);
    if (part.is_buffered) part.cursor.copy(part.memory + part.ahead, useful);
    settled += useful;
    if (useful < part.wanted) break;
    read -= here;
  }
  return settled;
}

}  // namespace

ssize_t read_direct(const ReadCall& read_call, ReadRing* ring, int descriptor, SegmentCursor cursor,
                    off_t offset) {
  std::byte* const memory = buffer();
  if (memory == nullptr) {
    errno = ENOMEM;
    return -1;
  }
  const std::size_t most = ring == nullptr ? 1 : kMostCalls;
  std::vector<Call> calls = plan_calls(cursor, static_cast<std::uint64_t>(offset), memory, most);
  const std::vector<RingRead> reads = make_reads(read_call, ring, descriptor, calls);
  std::uint64_t settled = 0;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (reads[i].result < 0 && settled == 0) {
      errno = ring == nullptr ? static_cast<int>(-reads[i].result) : EAGAIN;
      return -1;
    }
    const auto read = static_cast<std::uint64_t>(std::max<ssize_t>(reads[i].result, 0));
    const std::uint64_t useful = settle(calls[i].parts, read);
    settled += useful;
    if (useful < calls[i].wanted) break;  // if the reason persists, the next call reports it
  }
  return static_cast<ssize_t>(settled);
}

}  // namespace streamer
