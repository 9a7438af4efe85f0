// Connections that outlive the load that made them: the next load from a server, or the next read
// of an open checkpoint, pays no handshake.
//
// A reactor takes a handle of libcurl, in which its connections are, and gives it back when it has
// nothing in flight any more. With the connections stays what is known of their server
// (net/endpoint.h): how large its requests should be, and how long they take. What nobody took for
// a minute is closed, by a thread that there is only while something is kept, and so is what leads
// to a server that lets other requests wait; at exit all are. None is kept where most of the
// descriptors that the process may have are open.
//
// Thread-safe. A forked child starts with none, and leaves its parent's alone.
#pragma once

#include <curl/curl.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "net/endpoint.h"

namespace streamer {

struct FreeMulti {
  void operator()(CURLM* multi) const { curl_multi_cleanup(multi); }
};
using MultiHandle = std::unique_ptr<CURLM, FreeMulti>;
// One without connections. Throws std::runtime_error where libcurl gives none.
MultiHandle new_multi();

class KeptConnections {
 public:
  static constexpr std::chrono::seconds kIdle{60};  // load balancers close idle connections then
  static constexpr std::size_t kMostHandles = 64;   // each has the connections of one reactor

  static KeptConnections& of_process();

  explicit KeptConnections(std::chrono::nanoseconds idle = kIdle) : idle_(idle) {}
  ~KeptConnections();
  KeptConnections(const KeptConnections&) = delete;
  KeptConnections& operator=(const KeptConnections&) = delete;

  // One whose connections lead to that server, the last that was kept, or a new one. Throws
  // std::runtime_error where libcurl gives none.
  MultiHandle take(const Endpoint& server);
  // Without any request in it.
  void keep(MultiHandle multi, std::shared_ptr<Endpoint> server);
  // Closes those that lead to a server: it may count them, and have no room for others.
  void leave(const Endpoint& server);
  // Closes all that are kept, and says how many handles they were.
  std::size_t release();

  std::size_t kept();

 private:
  struct Kept {
    MultiHandle multi;
    std::shared_ptr<Endpoint> server;
    TimePoint since;
  };

  void close_idle_ones();
  // Its lock is held.
  std::vector<Kept> take_out(const std::function<bool(const Kept&)>& is_meant);
  void start_closing();

  const std::chrono::nanoseconds idle_;
  std::mutex mutex_;
  std::vector<Kept> kept_;              // the oldest first; guarded by mutex_
  std::size_t closing_ = 0;             // taken out to be closed; guarded by mutex_
  bool has_thread_ = false;             // guarded by mutex_
  std::condition_variable is_changed_;  // something was released or closed, or the thread ended
};

}  // namespace streamer
