// Names the calling thread, so that a profiler and the leak test can tell whose it is.
#pragma once

#include <pthread.h>

#include <string>

namespace streamer {

// Linux keeps 15 characters; "streamer-http12" just fits.
inline void name_this_thread(const std::string& role, unsigned index) {
  const std::string name = "streamer-" + role + std::to_string(index);
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
}

}  // namespace streamer
