// How one load is read; the Python layer chooses all of it.
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
  // HTTP blocks are as large as each server likes its requests (net/request_size.h), at most
  // scheduler.block_bytes.
  bool http_blocks_follow_server = false;
  unsigned nfs_threads = 4;  // each with connections of its own
  Timeouts timeouts;
  RetryOptions retry;
  std::uint64_t pinned_bytes = std::uint64_t{256} << 20;  // most on their way to one device
  // Files that are read past the page cache go straight to their devices: where the library really
  // reads them so (unset), as its configuration says (true), or never.
  std::optional<bool> gpudirect = false;
  // Before /sys, which tells of NUMA nodes; tests have a folder of their own.
  std::string system_root;
  double hedge_percent = 5;  // most extra bytes for duplicates of slow requests; 0: none are sent
};

}  // namespace streamer
