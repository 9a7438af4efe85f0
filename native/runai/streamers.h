// The streamers of this process, by number. A handle is a number, not an address, so the handle of
// an ended or unknown streamer is recognized. If a thread ends a streamer, calls on other threads
// keep it alive until they return.
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
  // Returns the table of this process. A forked child starts with an empty table, because the
  // reading threads exist only in the parent. The table is never destroyed, because a thread may
  // still wait when the process exits.
  static Streamers& instance();

  std::shared_ptr<Streamer> add();
  std::shared_ptr<Streamer> find(uint64_t number);    // null if there is none
  std::shared_ptr<Streamer> remove(uint64_t number);  // null if there was none

  // Whether a streamer ever had this number, in this process or in the process that it was forked
  // from.
  static bool has_existed(uint64_t number);

 private:
  explicit Streamers(pid_t process) : process_(process) {}

  const pid_t process_;
  std::mutex mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<Streamer>> streamers_;  // guarded by mutex_
};

}  // namespace streamer::runai
