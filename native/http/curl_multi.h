// One CURLM: the requests that one thread drives, and the connections that they leave open.
//
// All methods belong to the thread that drives the requests. Only wake() may be called from any
// thread, so a lock protects the handle while it is replaced.
#pragma once

#include <curl/curl.h>

#include <cstddef>
#include <mutex>
#include <optional>

#include "http/kept_connections.h"

namespace streamer {

class CurlMulti {
 public:
  struct Finished {
    CURL* easy = nullptr;
    CURLcode result = CURLE_OK;
  };

  // At most `max_open_connections` stay open between requests.
  CurlMulti(MultiHandle multi, std::size_t max_open_connections);
  CurlMulti(const CurlMulti&) = delete;
  CurlMulti& operator=(const CurlMulti&) = delete;

  // Throws std::runtime_error if libcurl fails, as perform() does: a request causes no such error.
  void add(CURL* easy);
  void remove(CURL* easy);
  // Sends and receives what is possible without waiting.
  void perform();
  // Returns the next request that ended; nothing if there is none. The caller removes it.
  std::optional<Finished> next_finished();
  // Waits until a socket is ready, the time is up, or wake() was called.
  void wait(int timeout_ms);

  // Closes all connections. No request may be in the handle. A call of wake() may be lost.
  void close_connections();
  // Returns the handle with its open connections. No request may be in it. Nothing may be called
  // after this.
  MultiHandle release();

  // Ends a wait(), or the next one. Called from any thread.
  void wake();

 private:
  void use(MultiHandle multi);

  const std::size_t max_open_connections_;
  std::mutex mutex_;   // taken to replace multi_, and to use it on another thread
  MultiHandle multi_;  // not null until release()
};

}  // namespace streamer
