// How long a server may keep a request waiting.
#pragma once

namespace streamer {

struct Timeouts {
  double connect_timeout_s = 10;
  double first_byte_timeout_s = 30;  // from the request's last byte to the response's first
  double stall_timeout_s = 10;       // longest time with less than stall_bytes_per_s
  double stall_bytes_per_s = 256 << 10;
};

}  // namespace streamer
