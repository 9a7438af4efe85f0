#include "io/read_ring.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/temporary_file_fixture.h"
#include "io/open_file.h"
#include "plan/segment_cursor.h"

namespace streamer {
namespace {

// Runs `work` in a separate thread, because the thread's ring may fail.
void with_ring(const std::function<void(ReadRing& ring)>& work) {
  std::thread([&work] {
    ReadRing* const ring = ReadRing::of_this_thread();
    if (ring == nullptr) {
      MESSAGE("NO IO_URING here: nothing of this was checked");
      return;
    }
    work(*ring);
  }).join();
}

std::set<int> descriptors_of_rings() {
  std::set<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const auto target = std::filesystem::read_symlink(entry.path(), gone);
    if (target.string().ends_with("[io_uring]")) found.insert(std::stoi(entry.path().filename()));
  }
  return found;
}

// The last reads wait until the first ones end.
constexpr std::size_t kReads = 3 * ReadRing::kMostReads + 1;

struct Fixture {
  std::string data = random_data(kReads * 4096, 11);
  TemporaryFile temporary{data};
  OpenFile file{open(temporary.path().c_str(), O_RDONLY)};
  std::vector<char> memory = std::vector<char>(data.size());
  std::array<iovec, kReads> vectors;
  std::vector<RingRead> reads;

  Fixture() {
    for (std::size_t i = 0; i < vectors.size(); ++i) {
      vectors[i] = {memory.data() + i * 4096, 4096};
      reads.push_back({file.descriptor, &vectors[i], 1, static_cast<off_t>(i * 4096)});
    }
  }
};

TEST_CASE("a ring performs all reads repeatedly, and reports the end of the file") {
  with_ring([](ReadRing& ring) {
    Fixture fixture;
    for (int round = 0; round < 100; ++round) {
      std::memset(fixture.memory.data(), 0, fixture.memory.size());
      ring.read(fixture.reads);
      for (const RingRead& read : fixture.reads) CHECK(read.result == 4096);
      CHECK(std::memcmp(fixture.memory.data(), fixture.data.data(), fixture.data.size()) == 0);
    }
    fixture.reads[3].offset = static_cast<off_t>(fixture.data.size() - 100);
    ring.read(fixture.reads);
    CHECK(fixture.reads[3].result == 100);
    fixture.reads[3].offset = static_cast<off_t>(fixture.data.size());
    ring.read(fixture.reads);
    CHECK(fixture.reads[3].result == 0);
    CHECK(ReadRing::of_this_thread() == &ring);
  });
}

TEST_CASE("after a failed read the thread no longer has a ring") {
  with_ring([](ReadRing& ring) {
    Fixture fixture;
    fixture.reads[1].descriptor = -1;
    ring.read(fixture.reads);
    CHECK(fixture.reads[0].result == 4096);
    CHECK(fixture.reads[1].result == -EBADF);
    CHECK(fixture.reads[2].result == 4096);
    CHECK(ReadRing::of_this_thread() == nullptr);
  });
}

TEST_CASE("reads that the system does not accept are reported") {
  const std::set<int> of_others = descriptors_of_rings();
  with_ring([&of_others](ReadRing& ring) {
    Fixture fixture;
    const OpenFile other(open("/dev/null", O_RDWR | O_CLOEXEC));
    std::set<int> found = descriptors_of_rings();
    for (const int descriptor : of_others) found.erase(descriptor);
    REQUIRE(found.size() == 1);
    REQUIRE(dup3(other.descriptor, *found.begin(), O_CLOEXEC) >= 0);
    ring.read(fixture.reads);
    for (const RingRead& read : fixture.reads) CHECK(read.result == -EAGAIN);
    CHECK(ReadRing::of_this_thread() == nullptr);
  });
}

}  // namespace
}  // namespace streamer
