// Several file reads in flight from one thread, through io_uring, if the system has and allows it.
//
// Not thread-safe: a ring belongs to its thread. A build without liburing also has this class, but
// no thread ever gets a ring.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <span>

namespace streamer {

struct RingRead {
  int descriptor = -1;
  const iovec* vectors = nullptr;
  unsigned vector_count = 0;
  off_t offset = 0;
  ssize_t result = 0;  // number of bytes, 0 at the end of the file, or -errno
};

class ReadRing {
 public:
  static constexpr std::size_t kMostReads = 4;

  // Returns the calling thread's ring; the first call creates it. Returns null if the system has no
  // io_uring or forbids it (as in many containers). Also returns null after a failed read, so that
  // preadv2 repeats the read and reports the error.
  static ReadRing* of_this_thread();

  ~ReadRing();
  ReadRing(const ReadRing&) = delete;
  ReadRing& operator=(const ReadRing&) = delete;

  // Runs at most kMostReads reads at a time, and returns when all of them have ended. Reads that
  // the system did not accept have the result -EAGAIN.
  void read(std::span<RingRead> reads);

 private:
  struct State;

  ReadRing();

  const std::unique_ptr<State> state_;
  bool is_usable_ = false;
};

}  // namespace streamer
