// The options of one load. The Python layer sets all of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "net/retry.h"
#include "net/timeouts.h"
#include "schedule/scheduler.h"

namespace streamer {

struct SessionOptions {
  SchedulerOptions scheduler;
  unsigned file_threads = 4;
  unsigned http_reactors = 2;
  unsigned http_in_flight = 8;  // per reactor
  // HTTP blocks have the best request size of their server (net/request_size.h), at most
  // scheduler.block_bytes.
  bool http_blocks_follow_server = false;
  unsigned nfs_threads = 4;  // each has its own connections
  Timeouts timeouts;
  RetryOptions retry;
  std::uint64_t pinned_bytes = std::uint64_t{256} << 20;  // most bytes in flight to one device
  // Whether files that are read past the page cache go straight to their devices. Unset: if the
  // library reads them directly. True: as the library's configuration says. False: never.
  std::optional<bool> gpudirect = false;
  // Prefix of /sys, which lists NUMA nodes. Tests use a folder of their own.
  std::string system_root;
  std::uint64_t trace_events = 0;  // most events between two calls of take_trace(); 0: no trace
  double hedge_percent = 5;  // most extra bytes for duplicates of slow requests; 0: no duplicates
};

}  // namespace streamer
