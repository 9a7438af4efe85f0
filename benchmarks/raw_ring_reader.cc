// Measures the limit for files with io_uring: like raw_file_reader, but one thread has all reads in
// flight, instead of many threads with one read each.
//
//   raw_ring_reader [--in-flight 32] [--block 4194304] [--direct] [--touch BYTES] FILE...
//
// Guarantees: a run that prints its JSON line has read every byte of every file once.
#include <liburing.h>

#include "raw_files.h"

namespace {

using bench::Die;

constexpr const char* kUsage =
    "usage: raw_ring_reader [--in-flight N] [--block BYTES] [--direct] [--touch BYTES] FILE...";

int Check(int code, const char* action) {
  if (code < 0) Die(std::string(action) + ": " + std::strerror(-code));
  return code;
}

void Submit(io_uring& ring, int descriptor, const bench::Block& block, bool direct) {
  io_uring_sqe* const entry = io_uring_get_sqe(&ring);
  const auto wanted = static_cast<unsigned>(bench::WantedBytes(block, direct));
  io_uring_prep_read(entry, descriptor, block.destination, wanted, block.offset);
  io_uring_sqe_set_data(entry, const_cast<bench::Block*>(&block));
  Check(io_uring_submit(&ring), "io_uring_submit");
}

void WaitForOne(io_uring& ring) {
  io_uring_cqe* done = nullptr;
  Check(io_uring_wait_cqe(&ring, &done), "io_uring_wait_cqe");
  const auto* block = static_cast<const bench::Block*>(io_uring_cqe_get_data(done));
  const auto got = static_cast<size_t>(Check(done->res, "read"));
  if (got < block->size) Die("a read gave less than was asked for");
  io_uring_cqe_seen(&ring, done);
}

}  // namespace

int main(int count, char** values) {
  size_t in_flight = 32;
  const auto arguments =
      bench::ParseFileArguments(count, values, {{"--in-flight", &in_flight}}, kUsage);
  bench::MeasureReading(arguments, [&](const std::vector<bench::File>& files, auto& queue) {
    io_uring ring;
    Check(io_uring_queue_init(static_cast<unsigned>(in_flight), &ring, 0), "no io_uring here");
    const bench::Block* next = queue.Take();
    for (size_t flying = 0; next != nullptr || flying > 0; --flying) {
      for (; next != nullptr && flying < in_flight; ++flying, next = queue.Take()) {
        Submit(ring, files[next->object].descriptor, *next, arguments.direct);
      }
      WaitForOne(ring);
    }
    io_uring_queue_exit(&ring);
  });
}
