// Connections that stay open after their load. The next load from the server, or the next read of
// an open checkpoint, then needs no handshake.
//
// A reactor takes a handle of libcurl with its connections, and returns it when no request is in
// flight. The state of the server is kept with the connections (net/endpoint.h): the size of its
// requests, and how long they take.
//
// A thread closes connections that were unused for a minute, and connections to a server that makes
// other requests wait. The thread runs only while connections are kept. At exit all are closed. No
// connection is kept if more than half of the descriptors that the process may have are open.
//
// Thread-safe. A forked child starts without connections, and does not touch its parent's.
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
// Returns a handle without connections. Throws std::runtime_error if libcurl fails.
MultiHandle new_multi();

class KeptConnections {
 public:
  static constexpr std::chrono::seconds kIdle{60};  // load balancers close idle connections too
  static constexpr std::size_t kMostHandles = 64;   // each holds the connections of one reactor

  static KeptConnections& of_process();

  explicit KeptConnections(std::chrono::nanoseconds idle = kIdle) : idle_(idle) {}
  ~KeptConnections();
  KeptConnections(const KeptConnections&) = delete;
  KeptConnections& operator=(const KeptConnections&) = delete;

  // Returns the handle with connections to that server that was kept last, or a new handle. Throws
  // std::runtime_error if libcurl fails.
  MultiHandle take(const Endpoint& server);
  // Keeps a handle. The handle must have no request.
  void keep(MultiHandle multi, std::shared_ptr<Endpoint> server);
  // Closes the connections to a server. If the server limits connections, the kept ones may take
  // the place of others.
  void close(const Endpoint& server);
  // Closes all kept connections, and returns the number of handles.
  std::size_t release();

  std::size_t kept();

 private:
  struct Kept {
    MultiHandle multi;
    std::shared_ptr<Endpoint> server;
    TimePoint since;
  };

  void close_idle_ones();
  // Removes the matching entries. The caller holds mutex_.
  std::vector<Kept> take_out(const std::function<bool(const Kept&)>& is_meant);
  void start_closing();

  const std::chrono::nanoseconds idle_;
  std::mutex mutex_;
  std::vector<Kept> kept_;              // the oldest first; guarded by mutex_
  std::size_t closing_ = 0;             // number of handles being closed; guarded by mutex_
  bool has_thread_ = false;             // guarded by mutex_
  std::condition_variable is_changed_;  // a handle was released or closed, or the thread ended
};

}  // namespace streamer
