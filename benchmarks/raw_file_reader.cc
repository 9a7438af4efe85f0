// Measures the limit for files: reads every byte of some files into fresh huge pages, and does
// nothing else.
//
//   raw_file_reader [--threads 2] [--block 4194304] [--direct] [--touch BYTES] FILE...
//
// Guarantees: a run that prints its JSON line has read every byte of every file once. It parses no
// headers and makes no tensors, so no loader can be faster on this machine.
#include <thread>

#include "raw_files.h"

namespace {

using bench::Die;

constexpr const char* kUsage =
    "usage: raw_file_reader [--threads N] [--block BYTES] [--direct] [--touch BYTES] FILE...";

void ReadBlock(int descriptor, const bench::Block& block, bool direct) {
  const size_t wanted = bench::WantedBytes(block, direct);
  for (size_t done = 0; done < block.size;) {
    const ssize_t got = pread(descriptor, block.destination + done, wanted - done,
                              static_cast<off_t>(block.offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      Die("pread at " + std::to_string(block.offset + done) + ": " + std::strerror(errno));
    if (got == 0) Die("file ends at " + std::to_string(block.offset + done));
    done += static_cast<size_t>(got);
  }
}

}  // namespace

int main(int count, char** values) {
  size_t threads = 2;
  const auto arguments =
      bench::ParseFileArguments(count, values, {{"--threads", &threads}}, kUsage);
  bench::MeasureReading(arguments, [&](const std::vector<bench::File>& files, auto& queue) {
    std::vector<std::jthread> running;
    for (size_t i = 0; i < threads; ++i) {
      running.emplace_back([&] {
        while (const bench::Block* block = queue.Take()) {
          ReadBlock(files[block->object].descriptor, *block, arguments.direct);
        }
      });
    }
  });
}
