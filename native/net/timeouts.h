// How long a server may keep a request waiting.
#pragma once

namespace streamer {

struct Timeouts {
  double connect_timeout_s = 10;
  double first_byte_timeout_s = 30;  // from the end of the request to the start of its response
  double stall_timeout_s = 10;       // longest time at a speed below stall_bytes_per_s
  double stall_bytes_per_s = 256 << 10;
};

}  // namespace streamer
