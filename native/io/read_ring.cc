#include "io/read_ring.h"

#include <liburing.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <thread>

namespace streamer {
namespace {

void queue(io_uring& ring, RingRead& read) {
  io_uring_sqe* const entry = io_uring_get_sqe(&ring);
  io_uring_prep_readv(entry, read.descriptor, read.vectors, read.vector_count,
                      static_cast<std::uint64_t>(read.offset));
  io_uring_sqe_set_data(entry, &read);
}

// Submits the queued reads, and returns how many of them the system accepted.
std::size_t submit(io_uring& ring, std::size_t queued) {
  std::size_t taken = 0;
  while (taken < queued) {
    const int count = io_uring_submit(&ring);
    if (count == -EINTR) continue;
    if (count <= 0) break;
    taken += static_cast<std::size_t>(count);
  }
  return taken;
}

// Waits without a time limit, because the system writes to the memory of a read until the read
// ends.
io_uring_cqe* wait_for_one(io_uring& ring) {
  io_uring_cqe* ended = nullptr;
  for (int code = -1; code != 0;) {
    code = io_uring_wait_cqe(&ring, &ended);
    if (code != 0 && code != -EINTR) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return ended;
}

}  // namespace

struct ReadRing::State {
  io_uring ring{};
};

ReadRing::ReadRing() : state_(std::make_unique<State>()) {
  is_usable_ = io_uring_queue_init(kMostReads, &state_->ring, 0) == 0;
  if (!is_usable_) state_->ring.ring_fd = -1;
}

ReadRing::~ReadRing() {
  if (state_->ring.ring_fd >= 0) io_uring_queue_exit(&state_->ring);
}

ReadRing* ReadRing::of_this_thread() {
  static thread_local ReadRing ring;
  return ring.is_usable_ ? &ring : nullptr;
}

void ReadRing::read(std::span<RingRead> reads) {
  for (RingRead& read : reads) read.result = -EAGAIN;
  std::size_t next = 0;
  std::size_t in_flight = 0;
  while (next < reads.size() || in_flight > 0) {
    const std::size_t begun = next;
    while (next < reads.size() && in_flight + (next - begun) < kMostReads) {
      queue(state_->ring, reads[next++]);
    }
    const std::size_t taken = submit(state_->ring, next - begun);
    if (taken < next - begun) next = reads.size();  // the system accepts no more
    in_flight += taken;
    if (in_flight == 0) break;
    io_uring_cqe* const ended = wait_for_one(state_->ring);
    static_cast<RingRead*>(io_uring_cqe_get_data(ended))->result = ended->res;
    io_uring_cqe_seen(&state_->ring, ended);
    --in_flight;
  }
  is_usable_ = std::all_of(reads.begin(), reads.end(),
                           [](const RingRead& read) { return read.result >= 0; });
}

}  // namespace streamer
