#include "io/page_cache.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <cerrno>
#include <chrono>
#include <random>
#include <string>

namespace streamer {
namespace {

// The longest time to read a byte from memory, including the system call. A disk takes at least 60
// microseconds, and a server takes longer.
constexpr std::chrono::microseconds kLongestCopy{30};

// The number is from getrusage(2). It is always 0 if the kernel does not count the input of each
// task.
long blocks_read_by_this_thread() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_inblock;
}

}  // namespace

bool is_cached(int descriptor, off_t offset, const FlaggedReadCall& read) {
  char byte = 0;
  const iovec vector{&byte, 1};
  const long read_before = blocks_read_by_this_thread();
  const auto began = std::chrono::steady_clock::now();
  bool is_there = read(descriptor, &vector, 1, offset, RWF_NOWAIT) == 1;
  if (!is_there) {
    if (errno != EOPNOTSUPP) return false;  // EAGAIN: the byte is not in memory
    is_there = read(descriptor, &vector, 1, offset, 0) == 1 &&
               std::chrono::steady_clock::now() - began < kLongestCopy;
  }
  // A fast disk may deliver the byte during the call, so the call alone proves nothing.
  return is_there && blocks_read_by_this_thread() == read_before;
}

bool is_range_cached(int descriptor, off_t begin, off_t end) {
  static thread_local std::minstd_rand random{std::random_device{}()};
  if (begin >= end) return true;
  if (!is_cached(descriptor, begin) || !is_cached(descriptor, end - 1)) return false;
  constexpr off_t kParts = 4;
  const off_t part = (end - begin) / kParts;
  for (off_t i = 0; i < kParts && part > 0; ++i) {
    std::uniform_int_distribution<off_t> place(begin + i * part, begin + (i + 1) * part - 1);
    if (!is_cached(descriptor, place(random))) return false;
  }
  return true;
}

int open_through_cache(int descriptor) {
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  const int opened = open(link.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (opened >= 0) posix_fadvise(opened, 0, 0, POSIX_FADV_RANDOM);
  return opened;
}

}  // namespace streamer
