// Several reads of files in flight from one thread: io_uring, where the system has and allows it.
//
// Not thread-safe: a ring belongs to its thread. A build without liburing has this class too, but
// no thread ever has one.
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
  ssize_t result = 0;  // bytes, 0 at the end of the file, or -errno
};

class ReadRing {
 public:
  static constexpr std::size_t kMostReads = 4;

  // The calling thread's, made when first asked for; null where there is no io_uring, where it is
  // forbidden (as in many containers), and once a read failed: what preadv2 says of it counts.
  static ReadRing* of_this_thread();

  ~ReadRing();
  ReadRing(const ReadRing&) = delete;
  ReadRing& operator=(const ReadRing&) = delete;

  // Makes kMostReads reads at a time, the next one when one of them has ended, and returns when all
  // have. Those that the system did not take have -EAGAIN.
  void read(std::span<RingRead> reads);

 private:
  struct State;

  ReadRing();

  const std::unique_ptr<State> state_;
  bool is_usable_ = false;
};

}  // namespace streamer
