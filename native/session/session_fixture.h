// Random bytes in a file or behind a loopback server, for tests of whole loads.
#pragma once

#include "base/temporary_file_fixture.h"
#include "http/loopback_server.h"
#include "http/object.h"

namespace streamer {

inline HttpTarget target_of(const LoopbackServer& server) {
  HttpTarget target;
  target.url = server.url();
  return target;
}

}  // namespace streamer
