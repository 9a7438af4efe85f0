// Whether this process may open another file or socket.
//
// A library that opens sockets itself reports "could not connect" also if no descriptor was left,
// although the server is not at fault then. A call right after the failure asks the kernel for the
// true cause.
#pragma once

#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>

namespace streamer {

inline bool means_no_descriptor(int os_error) { return os_error == EMFILE || os_error == ENFILE; }

// Returns EMFILE or ENFILE if no descriptor is left, else 0.
inline int descriptor_shortage() {
  const int descriptor = eventfd(0, EFD_CLOEXEC);
  if (descriptor >= 0) {
    close(descriptor);
    return 0;
  }
  return means_no_descriptor(errno) ? errno : 0;
}

// Whether more than half of the descriptors that this process may have are open, judged by the
// lowest free number.
inline bool are_most_descriptors_open() {
  rlimit limit{};
  const int lowest = eventfd(0, EFD_CLOEXEC);
  if (lowest < 0) return means_no_descriptor(errno);
  close(lowest);
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 && static_cast<rlim_t>(lowest) > limit.rlim_cur / 2;
}

}  // namespace streamer
