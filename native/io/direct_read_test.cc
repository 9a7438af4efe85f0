#include "io/direct_read.h"

#include <doctest/doctest.h>
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "base/temporary_file_fixture.h"
#include "io/arena.h"
#include "io/file_reader.h"
#include "io/open_file.h"
#include "io/read_ring.h"

namespace streamer {
namespace {

const auto kNeverCancelled = [] { return false; };

// Behaves like a disk that is read with O_DIRECT, and counts the calls that a real disk would
// refuse.
struct StrictDisk {
  const std::string& data;
  std::size_t most = SIZE_MAX;  // upper limit of the bytes that one call returns
  int calls = 0;
  int refused = 0;

  ReadCall read_call() {
    return [this](int, const iovec* vectors, int count, off_t offset) -> ssize_t {
      ++calls;
      auto at = static_cast<std::uint64_t>(offset);
      bool is_aligned = count > 0 && at % kDirectAlignmentBytes == 0;
      for (int i = 0; i < count; ++i) is_aligned = is_aligned && is_page_wise(vectors[i]);
      if (!is_aligned) {
        ++refused;
        errno = EINVAL;
        return -1;
      }
      ssize_t read = 0;
      for (int i = 0; i < count && at < data.size(); ++i) {
        const std::size_t left = most - static_cast<std::size_t>(read);
        const std::size_t size = std::min({vectors[i].iov_len, data.size() - at, left});
        std::memcpy(vectors[i].iov_base, data.data() + at, size);
        at += size;
        read += static_cast<ssize_t>(size);
      }
      return read;
    };
  }

  static bool is_page_wise(const iovec& vector) {
    const auto address = reinterpret_cast<std::uintptr_t>(vector.iov_base);
    return address % kDirectAlignmentBytes == 0 && vector.iov_len % kDirectAlignmentBytes == 0 &&
           vector.iov_len > 0;
  }
};

// Memory for the bytes of a file from `begin` on, aligned as in the file or not.
class Target {
 public:
  Target(std::uint64_t begin, std::uint64_t size, bool is_in_step)
      : begin_(begin), size_(size), memory_(size + 2 * kDirectAlignmentBytes, '?') {
    auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    const std::size_t to_page =
        (kDirectAlignmentBytes - address % kDirectAlignmentBytes) % kDirectAlignmentBytes;
    data_ = memory_.data() + to_page + (begin + (is_in_step ? 0 : 64)) % kDirectAlignmentBytes;
  }

  Segment segment() { return {reinterpret_cast<std::byte*>(data_), size_, 0}; }
  bool holds(const std::string& file) const {
    return std::string_view(data_, size_) == std::string_view(file).substr(begin_, size_);
  }

 private:
  std::uint64_t begin_;
  std::uint64_t size_;
  std::vector<char> memory_;
  char* data_;
};

// Reads the whole block, and returns the number of steps.
int read_whole(const ReadCall& read_call, ReadRing* ring, int descriptor, Block& block) {
  SegmentCursor cursor(block);
  int steps = 0;
  for (; block.received < block.size(); ++steps) {
    const ssize_t got = read_direct(read_call, ring, descriptor, cursor,
                                    static_cast<off_t>(block.begin + block.received));
    REQUIRE(got > 0);
    cursor.skip(static_cast<std::uint64_t>(got));
    block.received += static_cast<std::uint64_t>(got);
  }
  return steps;
}

TEST_CASE("any block is read with aligned calls only, and every byte arrives") {
  std::mt19937_64 random(5);
  const std::string data = random_data(9'000'001, 5);
  const TemporaryFile temporary(data);
  const OpenFile file(open(temporary.path().c_str(), O_RDONLY | O_DIRECT));
  REQUIRE(file.descriptor >= 0);
  const bool has_ring = ReadRing::of_this_thread() != nullptr;
  if (!has_ring) MESSAGE("NO IO_URING here: reads through a ring were not checked");
  for (int round = 0; round < 60; ++round) {
    CAPTURE(round);
    Block block;
    block.begin = random() % 300'000;
    block.end = block.begin;
    std::vector<Target> targets;
    targets.reserve(64);
    while (targets.size() < 20 && block.end < data.size()) {
      const std::uint64_t most = random() % 3 == 0 ? 3'000'000 : 9'000;
      const std::uint64_t size = std::min(1 + random() % most, data.size() - block.end);
      if (random() % 5 == 0) {
        block.destinations.push_back({nullptr, size, Segment::kNoItem});
      } else {
        targets.emplace_back(block.end, size, random() % 2 == 0);
        block.destinations.push_back(targets.back().segment());
      }
      block.end += size;
    }
    StrictDisk disk{data};
    ReadRing* const ring = round % 2 == 0 ? nullptr : ReadRing::of_this_thread();
    read_whole(disk.read_call(), ring, file.descriptor, block);
    CHECK(disk.refused == 0);
    CHECK((disk.calls == 0) == (ring != nullptr));
    for (const Target& target : targets) CHECK(target.holds(data));
  }
  CHECK((ReadRing::of_this_thread() != nullptr) == has_ring);
}

TEST_CASE("a large tensor is read into place except its ends, which need no separate calls") {
  const std::string data = random_data(4'000'000, 6);
  Target target(1'000, 3'500'000, true);
  Block block;
  block.begin = 1'000;
  block.end = 3'501'000;
  block.destinations = {target.segment()};
  StrictDisk disk{data};
  read_whole(disk.read_call(), nullptr, 0, block);
  CHECK(target.holds(data));
  CHECK(disk.calls == 7);  // calls of 512 KiB: the first page is read together with the next bytes
}

TEST_CASE("a file that ends early is reported as its end") {
  const std::string data(5'000, 'x');
  std::vector<std::byte> memory(10'000);
  Block block;
  block.begin = 4'900;
  block.end = 14'900;
  block.destinations = {{memory.data(), memory.size(), 0}};
  StrictDisk disk{data};
  SegmentCursor cursor(block);
  CHECK(read_direct(disk.read_call(), nullptr, 0, cursor, 4'900) == 100);
  cursor.skip(100);
  CHECK(read_direct(disk.read_call(), nullptr, 0, cursor, 5'000) == 0);
}

TEST_CASE("a file that is read past the page cache is checked for changes like any other") {
  const std::string data = random_data(3'000'000, 7);
  const TemporaryFile file(data);
  std::vector<std::byte> memory(2'999'000);
  FileReader reader(file.path(), data.size(), "", {.is_direct = true});
  Block block;
  block.begin = 500;
  block.end = 500 + memory.size();
  block.destinations = {{memory.data(), memory.size(), 0}};
  REQUIRE_FALSE(reader.read(block, kNeverCancelled));
  CHECK(std::memcmp(memory.data(), data.data() + 500, memory.size()) == 0);
  std::filesystem::resize_file(file.path(), 1'000);
  block.received = 0;
  CHECK(reader.read(block, kNeverCancelled)->code == ErrorCode::kTruncated);
}

TEST_CASE("the page cache serves the rest if direct reads are refused or memory is short") {
  const std::string data = random_data(300'000, 8);
  const TemporaryFile file(data);
  for (const int os_error : {EINVAL, EOPNOTSUPP, ENOMEM}) {
    int calls = 0;
    const auto refuse_once = [&](int descriptor, const iovec* vectors, int count,
                                 off_t offset) -> ssize_t {
      const bool is_direct = (fcntl(descriptor, F_GETFL) & O_DIRECT) != 0;
      if (calls++ > 0) CHECK_FALSE(is_direct);
      if (calls > 1) return preadv(descriptor, vectors, count, offset);
      errno = os_error;
      return -1;
    };
    std::vector<std::byte> memory(data.size());
    FileReader reader(file.path(), data.size(), "", {.is_direct = true, .read_call = refuse_once});
    Block block;
    block.end = data.size();
    block.destinations = {{memory.data(), memory.size(), 0}};
    REQUIRE_FALSE(reader.read(block, kNeverCancelled));
    CHECK(std::memcmp(memory.data(), data.data(), data.size()) == 0);
    CHECK(calls == 2);
  }
}

TEST_CASE("a read that returns fewer bytes than requested is continued") {
  const std::string data = random_data(600'000, 9);
  for (std::size_t most = kDirectAlignmentBytes; most <= 60 * kDirectAlignmentBytes;
       most += 7 * kDirectAlignmentBytes) {
    CAPTURE(most);
    Target first(100, 5'000, false);
    Target second(5'100, 300'000, true);
    Target third(305'100, 9'000, false);
    Block block;
    block.begin = 100;
    block.end = 314'100;
    block.destinations = {first.segment(), second.segment(), third.segment()};
    StrictDisk disk{data, most};
    read_whole(disk.read_call(), nullptr, 0, block);
    CHECK(disk.refused == 0);
    for (const Target* target : {&first, &second, &third}) CHECK(target->holds(data));
  }
}

}  // namespace
}  // namespace streamer
