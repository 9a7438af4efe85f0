// What all HTTP reactors of a load count together. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/reader_count.h"

namespace streamer {

struct HttpCounters {
  std::atomic<std::uint64_t> requests{0};
  std::atomic<std::uint64_t> refreshes{0};
  std::atomic<std::uint64_t> hedges{0};
  std::atomic<std::uint64_t> received_bytes{0};
  ReaderCount reactors;
};

}  // namespace streamer
