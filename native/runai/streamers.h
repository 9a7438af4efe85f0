// The streamers of this process, by number. A handle is a number and no address: one that was
// ended, or never was, is recognized; a call that runs while another thread ends its streamer keeps
// it alive.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "runai/response_queue.h"

namespace streamer::runai {

struct Streamer {
  uint64_t number = 0;
  ResponseQueue responses;
};

class Streamers {
 public:
  // Of this process: a forked child begins with none, as the threads that read are its parent's.
  // They are never destroyed, because a thread may still wait when the process exits.
  static Streamers& here();

  std::shared_ptr<Streamer> add();
  std::shared_ptr<Streamer> find(uint64_t number);    // null: there is none
  std::shared_ptr<Streamer> remove(uint64_t number);  // null: there was none

  // Whether a streamer had this number, in this process or in the one that it was forked from.
  static bool was_there(uint64_t number);

 private:
  explicit Streamers(pid_t process) : process_(process) {}

  const pid_t process_;
  std::mutex mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<Streamer>> streamers_;  // guarded by mutex_
};

}  // namespace streamer::runai
