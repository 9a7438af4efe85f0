// The limit for files: reads every byte of the files given into fresh huge pages, and does nothing
// else.
//
//   raw_file_reader [--threads 2] [--block 4194304] [--direct] [--touch BYTES] FILE...
//
// Guarantees: a run that prints its JSON line has read every byte of every file once. No headers
// are parsed and no tensors made, so a loader that reaches this figure has nothing left to win on
// this machine.
#include <fcntl.h>
#include <sys/stat.h>

#include <thread>

#include "measured.h"

namespace {

using bench::Die;

struct Arguments {
  size_t threads = 2;
  size_t block = size_t{4} << 20;
  size_t touch = 0;
  bool direct = false;
  std::vector<std::string> paths;
};

Arguments Parse(int count, char** values) {
  Arguments arguments;
  const bench::Numbers numbers = {{"--threads", &arguments.threads},
                                  {"--block", &arguments.block},
                                  {"--touch", &arguments.touch}};
  for (int i = 1; i < count; ++i) {
    const std::string text = values[i];
    if (!text.starts_with("--")) {
      arguments.paths.push_back(text);
    } else if (text == "--direct") {
      arguments.direct = true;
    } else {
      if (++i == count) Die(text + " needs a value");
      bench::SetNumber(numbers, text, values[i]);
    }
  }
  if (arguments.paths.empty() || arguments.threads == 0 || arguments.block == 0) {
    Die("usage: raw_file_reader [--threads N] [--block BYTES] [--direct] [--touch BYTES] FILE...");
  }
  return arguments;
}

// An open file and the memory it is read into.
struct File {
  int descriptor;
  size_t size;
  bench::HugeBuffer memory;
};

File OpenFile(const std::string& path, bool direct) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | (direct ? O_DIRECT : 0));
  struct stat status = {};
  if (descriptor < 0 || fstat(descriptor, &status) != 0) Die(path + ": " + std::strerror(errno));
  const auto size = static_cast<size_t>(status.st_size);
  return {descriptor, size, bench::HugeBuffer(size)};
}

// With O_DIRECT the length must be a multiple of 4096: the last block asks for more and the file's
// end cuts it.
void ReadBlock(int descriptor, const bench::Block& block, bool direct) {
  const size_t wanted = direct ? (block.size + 4095) / 4096 * 4096 : block.size;
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

void ReadAll(const std::vector<File>& files, bench::BlockQueue& queue, const Arguments& arguments) {
  std::vector<std::jthread> threads;
  for (size_t i = 0; i < arguments.threads; ++i) {
    threads.emplace_back([&] {
      while (const bench::Block* block = queue.Take()) {
        ReadBlock(files[block->object].descriptor, *block, arguments.direct);
      }
    });
  }
}

}  // namespace

int main(int count, char** values) {
  const Arguments arguments = Parse(count, values);
  bench::TouchAndFree(arguments.touch);
  bench::Measurement measurement;

  std::vector<File> files;
  bench::BlockQueue queue;
  for (const std::string& path : arguments.paths) {
    files.push_back(OpenFile(path, arguments.direct));
    queue.Add(files.size() - 1, files.back().size, arguments.block, files.back().memory.data());
  }
  ReadAll(files, queue, arguments);
  measurement.Stop();

  size_t bytes = 0;
  uint64_t digest = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    bytes += files[i].size;
    digest += (i + 1) * bench::Digest({files[i].memory.data(), files[i].size});
    close(files[i].descriptor);
  }
  measurement.Print(bytes, digest);
}
