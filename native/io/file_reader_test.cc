#include "io/file_reader.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "io/arena_memory.h"

namespace streamer {
namespace {

const auto kNeverCancelled = [] { return false; };

// A file of bytes 0, 1, 2, … mod 251, which is removed at the end of the test.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::size_t size) : size_(size) {
    path_ = std::filesystem::temp_directory_path() /
            ("streamer_file_reader_" + std::to_string(getpid()));
    std::ofstream out(path_, std::ios::binary);
    for (std::size_t i = 0; i < size; ++i) out.put(static_cast<char>(i % 251));
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }

  std::string path() const { return path_.string(); }
  std::size_t size() const { return size_; }

 private:
  std::filesystem::path path_;
  std::size_t size_;
};

Block block_into(std::vector<std::byte>& target, std::uint64_t begin) {
  Block block;
  block.begin = begin;
  block.end = begin + target.size();
  block.destinations.push_back({target.data(), target.size(), 0});
  return block;
}

TEST_CASE("a block is scattered over its segments and its gaps are dropped") {
  const TemporaryFile file(200'000);
  FileReader reader(file.path(), file.size(), "");
  std::vector<std::byte> first(10), second(5);
  Block block;
  block.begin = 1000;
  block.end = 1000 + 10 + 100'000 + 5;
  block.destinations = {
      {first.data(), 10, 0}, {nullptr, 100'000, Segment::kNoItem}, {second.data(), 5, 1}};
  REQUIRE_FALSE(reader.read(block, kNeverCancelled));
  CHECK(block.received == block.size());
  CHECK(first[0] == std::byte{1000 % 251});
  CHECK(second[4] == std::byte{(1000 + 10 + 100'000 + 4) % 251});
}

TEST_CASE("more segments than one call accepts are all filled") {
  const TemporaryFile file(5000);
  FileReader reader(file.path(), file.size(), "");
  std::vector<std::byte> target(5000);
  Block block;
  block.end = 5000;
  for (std::size_t i = 0; i < 5000; ++i) block.destinations.push_back({&target[i], 1, 0});
  REQUIRE_FALSE(reader.read(block, kNeverCancelled));
  CHECK(target[4999] == std::byte{4999 % 251});
}

TEST_CASE("a missing file, a folder, a device and a FIFO are refused without waiting") {
  std::vector<std::byte> target(1);
  Block block = block_into(target, 0);
  CHECK(FileReader("/nonexistent/file", 1, "").read(block, kNeverCancelled)->code ==
        ErrorCode::kNotFound);
  CHECK(FileReader("/tmp", 1, "").read(block, kNeverCancelled)->code == ErrorCode::kIo);
  CHECK(FileReader("/dev/zero", 1, "").read(block, kNeverCancelled)->detail ==
        "not a regular file");
  const std::string fifo = "/tmp/streamer_fifo_" + std::to_string(getpid());
  REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
  FileReader reader(fifo, 1, "");
  CHECK(reader.read(block, kNeverCancelled)->detail == "not a regular file");
  CHECK(reader.read(block, kNeverCancelled).has_value());  // the second read is refused as well
  unlink(fifo.c_str());
}

TEST_CASE("a file shorter or longer than its header said is refused") {
  const TemporaryFile file(100);
  std::vector<std::byte> target(10);
  Block block = block_into(target, 0);
  CHECK(FileReader(file.path(), 101, "").read(block, kNeverCancelled)->code ==
        ErrorCode::kTruncated);
  CHECK(FileReader(file.path(), 99, "").read(block, kNeverCancelled)->code == ErrorCode::kChanged);
}

TEST_CASE("a file rewritten in place while it is read is noticed") {
  const TemporaryFile file(100);
  FileReader reader(file.path(), 100, "");
  std::vector<std::byte> target(10);
  Block first = block_into(target, 0);
  REQUIRE_FALSE(reader.read(first, kNeverCancelled));
  const timespec times[2] = {{1, 0}, {1, 0}};
  REQUIRE(utimensat(AT_FDCWD, file.path().c_str(), times, 0) == 0);
  Block second = block_into(target, 10);
  CHECK(reader.read(second, kNeverCancelled)->code == ErrorCode::kChanged);
}

TEST_CASE("a file replaced by a rename keeps giving its old bytes, but not to a new session") {
  const TemporaryFile file(100);
  FileReader reader(file.path(), 100, "");
  std::vector<std::byte> target(10);
  Block first = block_into(target, 0);
  REQUIRE_FALSE(reader.read(first, kNeverCancelled));
  const std::string other = file.path() + ".new";
  std::ofstream(other) << std::string(100, 'x');
  std::filesystem::rename(other, file.path());
  Block second = block_into(target, 10);
  CHECK_FALSE(reader.read(second, kNeverCancelled));
  CHECK(target[0] == std::byte{10});
  Block third = block_into(target, 0);
  CHECK(FileReader(file.path(), 100, reader.version()).read(third, kNeverCancelled)->code ==
        ErrorCode::kChanged);
}

TEST_CASE("a truncated file is an error, not a signal, and its bytes are kept") {
  const TemporaryFile file(100);
  FileReader reader(file.path(), 100, "");
  std::vector<std::byte> target(10);
  Block first = block_into(target, 0);
  REQUIRE_FALSE(reader.read(first, kNeverCancelled));
  REQUIRE(truncate(file.path().c_str(), 15) == 0);
  Block second = block_into(target, 10);
  CHECK(reader.read(second, kNeverCancelled)->code == ErrorCode::kTruncated);
}

// Returns a preadv2 that fails `failures` times; `calls` counts all calls.
ReadCall failing(int& calls, int failures, int os_error) {
  return [&calls, failures, os_error](int descriptor, const iovec* vectors, int count,
                                      off_t offset) -> ssize_t {
    if (calls++ < failures) {
      errno = os_error;
      return -1;
    }
    return preadv(descriptor, vectors, count, offset);
  };
}

TEST_CASE("after a stale handle or a failed read, the file is reopened once") {
  const TemporaryFile file(100);
  for (const int os_error : {ESTALE, EIO}) {
    int calls = 0;
    FileReader reader(file.path(), 100, "", {.read_call = failing(calls, 1, os_error)});
    std::vector<std::byte> target(10);
    Block block = block_into(target, 20);
    CHECK_FALSE(reader.read(block, kNeverCancelled));
    CHECK(target[9] == std::byte{29});
    CHECK(calls == 2);
  }
}

TEST_CASE("a read that keeps failing is an error with its offset") {
  const TemporaryFile file(100);
  int calls = 0;
  FileReader reader(file.path(), 100, "", {.read_call = failing(calls, 99, EIO)});
  std::vector<std::byte> target(10);
  Block block = block_into(target, 20);
  const auto error = reader.read(block, kNeverCancelled);
  CHECK(error->code == ErrorCode::kIo);
  CHECK(error->os_error == EIO);
  CHECK(error->detail.find("at byte 20") != std::string::npos);
  CHECK(error->attempts == 2);
  CHECK(calls == 2);
}

TEST_CASE("a reopened file is read on after the last good byte, if its version is the same") {
  const TemporaryFile file(100);
  std::vector<off_t> offsets;
  bool replaces = false;
  const auto one_byte_then_stale = [&](int descriptor, const iovec* vectors, int,
                                       off_t offset) -> ssize_t {
    offsets.push_back(offset);
    if (offsets.size() == 2) {
      if (replaces) std::ofstream(file.path()) << std::string(100, 'x');
      errno = ESTALE;
      return -1;
    }
    return pread(descriptor, vectors[0].iov_base, 1, offset);
  };
  std::vector<std::byte> target(3);
  Block block = block_into(target, 20);
  FileReader reader(file.path(), 100, "", {.read_call = one_byte_then_stale});
  REQUIRE_FALSE(reader.read(block, kNeverCancelled));
  CHECK(offsets == std::vector<off_t>{20, 21, 21, 22});
  CHECK(target[2] == std::byte{22});

  offsets.clear();
  replaces = true;
  Block again = block_into(target, 20);
  CHECK(reader.read(again, kNeverCancelled)->code == ErrorCode::kChanged);
}

TEST_CASE("an interrupted read is repeated without a limit") {
  const TemporaryFile file(100);
  for (const int os_error : {EINTR, EAGAIN}) {
    int calls = 0;
    FileReader reader(file.path(), 100, "", {.read_call = failing(calls, 5, os_error)});
    std::vector<std::byte> target(10);
    Block block = block_into(target, 0);
    CHECK_FALSE(reader.read(block, kNeverCancelled));
    CHECK(calls == 6);
  }
}

std::ptrdiff_t open_files() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return std::distance(begin(all), end(all));
}

// Returns for each read whether the first page of its fresh target was already in memory.
std::vector<bool> pages_there_before_reads(bool fills_own_memory) {
  constexpr std::size_t kBytes = 2 * kLargeStepBytes;
  const TemporaryFile file(kBytes);
  std::byte* const target = map_huge(kBytes);
  REQUIRE(target != nullptr);
  std::vector<bool> found;
  FileOptions options;
  options.read_call = [&found](int descriptor, const iovec* vectors, int count, off_t offset) {
    unsigned char is_there = 0;
    const auto address = reinterpret_cast<std::uintptr_t>(vectors[0].iov_base);
    const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    CHECK(mincore(reinterpret_cast<void*>(address / page * page), 1, &is_there) == 0);
    found.push_back(is_there & 1);
    return preadv2(descriptor, vectors, count, offset, 0);
  };
  FileReader reader(file.path(), kBytes, "", options);
  reader.expect(kBytes, fills_own_memory);
  Block block;
  block.end = kBytes;
  block.destinations = {{target, kBytes, 0}};
  CHECK_FALSE(reader.read(block, kNeverCancelled));
  munmap(target, kBytes);
  return found;
}

TEST_CASE("the engine's own memory is touched before a read, and a caller's memory is not") {
  CHECK(pages_there_before_reads(true) == std::vector<bool>{true, true});
  CHECK_FALSE(pages_there_before_reads(false).at(0));
}

TEST_CASE("a file is closed after its last wanted byte") {
  const TemporaryFile file(100);
  const auto before = open_files();
  FileReader reader(file.path(), 100, "");
  reader.expect(30, true);
  std::vector<std::byte> first(10), second(20);
  Block one = block_into(first, 0), two = block_into(second, 50);
  REQUIRE_FALSE(reader.read(one, kNeverCancelled));
  CHECK(open_files() == before + 1);
  REQUIRE_FALSE(reader.read(two, kNeverCancelled));
  CHECK(open_files() == before);
  CHECK_FALSE(reader.version().empty());
}

TEST_CASE("bytes that are read again for their digest are not counted again (regression)") {
  const TemporaryFile file(100);
  const auto before = open_files();
  FileReader reader(file.path(), 100, "");
  reader.expect(30, true);
  std::vector<std::byte> first(10), second(20);
  Block one = block_into(first, 0), two = block_into(second, 50);
  Block again = one;
  again.is_reread = true;
  REQUIRE_FALSE(reader.read(one, kNeverCancelled));
  REQUIRE_FALSE(reader.read(again, kNeverCancelled));
  REQUIRE_FALSE(reader.read(two, kNeverCancelled));
  CHECK(open_files() == before);
  again.received = 0;
  REQUIRE_FALSE(reader.read(again, kNeverCancelled));
  CHECK(open_files() == before);
}

TEST_CASE("a file must lie in its folder if requested, whatever links lead there") {
  const TemporaryFile file(100);
  const std::filesystem::path folder = std::filesystem::canonical(file.path()).parent_path();
  const std::string link = file.path() + ".link";
  std::filesystem::create_symlink(file.path(), link);
  std::vector<std::byte> target(10);
  const auto read_in = [&](const std::string& path, const std::string& allowed) {
    Block block = block_into(target, 0);
    return FileReader(path, 100, "", {.folder = allowed}).read(block, kNeverCancelled);
  };
  CHECK_FALSE(read_in(file.path(), folder));
  CHECK_FALSE(read_in(link, folder));
  CHECK_FALSE(read_in(file.path(), "/"));
  CHECK(read_in(link, folder / "elsewhere")->code == ErrorCode::kLeavesFolder);
  CHECK(read_in(file.path(), file.path().substr(0, file.path().size() - 1)).has_value());
  unlink(link.c_str());
}

TEST_CASE("a cancelled read returns at once with an unfinished block") {
  const TemporaryFile file(100);
  FileReader reader(file.path(), 100, "");
  std::vector<std::byte> target(10);
  Block block = block_into(target, 0);
  CHECK_FALSE(reader.read(block, [] { return true; }));
  CHECK(block.received == 0);
}

}  // namespace
}  // namespace streamer
