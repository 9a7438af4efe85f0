// Shared by the raw readers of files: their arguments, the open files with fresh memory for each
// file, and the measured run.
#ifndef STREAMER_BENCHMARKS_RAW_FILES_H_
#define STREAMER_BENCHMARKS_RAW_FILES_H_

#include <fcntl.h>
#include <sys/stat.h>

#include "measured.h"

namespace bench {

inline constexpr size_t kPage = 4096;

struct FileArguments {
  size_t block = size_t{4} << 20;
  size_t touch = 0;
  bool direct = false;
  std::vector<std::string> paths;
};

// `numbers` are the program's own options beside --block, --touch and --direct.
inline FileArguments ParseFileArguments(int count, char** values, Numbers numbers,
                                        const std::string& usage) {
  FileArguments arguments;
  numbers["--block"] = &arguments.block;
  numbers["--touch"] = &arguments.touch;
  for (int i = 1; i < count; ++i) {
    const std::string text = values[i];
    if (!text.starts_with("--")) {
      arguments.paths.push_back(text);
    } else if (text == "--direct") {
      arguments.direct = true;
    } else {
      if (++i == count) Die(text + " needs a value");
      SetNumber(numbers, text, values[i]);
    }
  }
  numbers.erase("--touch");
  for (const auto& [name, number] : numbers) {
    if (*number == 0) Die(name + " must not be 0\n" + usage);
  }
  if (arguments.paths.empty()) Die(usage);
  return arguments;
}

// An open file and the memory into which it is read.
struct File {
  int descriptor;
  size_t size;
  HugeBuffer memory;
};

inline File OpenFile(const std::string& path, bool direct) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | (direct ? O_DIRECT : 0));
  struct stat status = {};
  if (descriptor < 0 || fstat(descriptor, &status) != 0) Die(path + ": " + std::strerror(errno));
  const auto size = static_cast<size_t>(status.st_size);
  return {descriptor, size, HugeBuffer(size)};
}

// With O_DIRECT the length must be a multiple of a page, so the last read requests more bytes than
// the file has, and gets fewer.
inline size_t WantedBytes(const Block& block, bool direct) {
  return direct ? (block.size + kPage - 1) / kPage * kPage : block.size;
}

// Runs `read(files, queue)`, which must take and read every block, and prints the figures.
template <typename Read>
void MeasureReading(const FileArguments& arguments, Read read) {
  TouchAndFree(arguments.touch);
  Measurement measurement;

  std::vector<File> files;
  BlockQueue queue;
  for (const std::string& path : arguments.paths) {
    files.push_back(OpenFile(path, arguments.direct));
    queue.Add(files.size() - 1, files.back().size, arguments.block, files.back().memory.data());
  }
  read(files, queue);
  measurement.Stop();

  size_t bytes = 0;
  uint64_t digest = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    bytes += files[i].size;
    digest += (i + 1) * Digest({files[i].memory.data(), files[i].size});
    close(files[i].descriptor);
  }
  measurement.Print(bytes, digest);
}

}  // namespace bench

#endif  // STREAMER_BENCHMARKS_RAW_FILES_H_
