#include "io/page_cache.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <string>
#include <thread>

#include "base/temporary_file_fixture.h"

namespace streamer {
namespace {

// A file with one page, which is in the page cache because it was just written.
struct WarmFile {
  WarmFile() : descriptor(open(file.path().c_str(), O_RDONLY | O_CLOEXEC)) {}
  ~WarmFile() { close(descriptor); }

  const TemporaryFile file{"data"};
  const int descriptor;
};

ssize_t refuse_flags(int descriptor, const iovec* vectors, int count, off_t offset, int flags) {
  if (flags == 0) return preadv2(descriptor, vectors, count, offset, 0);
  errno = EOPNOTSUPP;
  return -1;
}

TEST_CASE("a byte that was just written is in memory, and a byte after the end is not") {
  const WarmFile warm;
  CHECK(is_cached(warm.descriptor, 3));
  CHECK_FALSE(is_cached(warm.descriptor, 4));
  CHECK_FALSE(is_cached(-1, 0));
}

TEST_CASE("a byte that a read would have to wait for is not in memory") {
  const WarmFile warm;
  const auto would_wait = [](int, const iovec*, int, off_t, int flags) -> ssize_t {
    CHECK(flags == RWF_NOWAIT);
    errno = EAGAIN;
    return -1;
  };
  CHECK_FALSE(is_cached(warm.descriptor, 0, would_wait));
}

TEST_CASE("a byte that the disk delivers during the check does not count as cached") {
  const WarmFile warm;
  struct statfs system {};
  REQUIRE(fstatfs(warm.descriptor, &system) == 0);
  if (system.f_type == TMPFS_MAGIC) return;  // tmpfs has no disk
  fsync(warm.descriptor);
  posix_fadvise(warm.descriptor, 0, 0, POSIX_FADV_DONTNEED);
  const auto wait_for_disk = [](int descriptor, const iovec* vectors, int count, off_t offset,
                                int) { return preadv2(descriptor, vectors, count, offset, 0); };
  CHECK_FALSE(is_cached(warm.descriptor, 0, wait_for_disk));
  CHECK(is_cached(warm.descriptor, 0, wait_for_disk));
}

TEST_CASE("if the file system cannot report it, a byte that is read at once was in memory") {
  const WarmFile warm;
  bool was_once_found = false;  // an interrupt of this thread may slow down a single read
  for (int i = 0; i < 20 && !was_once_found; ++i) {
    was_once_found = is_cached(warm.descriptor, 0, refuse_flags);
  }
  CHECK(was_once_found);
  const auto slowly = [](int descriptor, const iovec* vectors, int count, off_t offset, int flags) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return refuse_flags(descriptor, vectors, count, offset, flags);
  };
  CHECK_FALSE(is_cached(warm.descriptor, 0, slowly));
}

TEST_CASE("a file that is read past the page cache is opened again to read through it") {
  const WarmFile warm;
  const int again = open_through_cache(warm.descriptor);
  CHECK(is_cached(again, 0));
  close(again);
  CHECK(open_through_cache(-1) == -1);
}

TEST_CASE("repeated checks of a range do not make it seem cached") {
  constexpr off_t kBytes = 16 << 20;
  const TemporaryFile file(random_data(kBytes, 1));
  const int written = open(file.path().c_str(), O_RDONLY | O_CLOEXEC);
  CHECK(is_range_cached(written, 0, kBytes));
  CHECK(is_range_cached(written, 5, 6));
  CHECK(is_range_cached(written, 5, 5));
  struct statfs system {};
  REQUIRE(fstatfs(written, &system) == 0);
  if (system.f_type != TMPFS_MAGIC) {  // tmpfs has no disk
    fsync(written);
    posix_fadvise(written, 0, 0, POSIX_FADV_DONTNEED);
    const int descriptor = open_through_cache(written);
    for (int i = 0; i < 5; ++i) {
      CHECK_FALSE(is_range_cached(descriptor, 0, kBytes));
      std::this_thread::sleep_for(std::chrono::milliseconds(5));  // give the disk time to deliver
    }
    close(descriptor);
  }
  close(written);
}

}  // namespace
}  // namespace streamer
