// One request and its response, which the caller reads at its own pace. It serves pages of
// listings, sizes, versions, logins, small uploads, and objects of servers without byte ranges.
//
// An exchange takes a kept connection (http/kept_connections.h), and returns it at the end of the
// body, so that reads of data find it open. The request is sent once, and redirects are not
// followed. The exchange receives what the caller reads; libcurl and the socket hold a little more.
//
// Used by one thread at a time. A forked child does not touch its parent's exchange.
#pragma once

#include <curl/curl.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/read_error.h"
#include "http/kept_connections.h"
#include "http/object.h"
#include "http/request.h"

namespace streamer {

struct ExchangeRequest {
  HttpTarget target;
  std::string method = "GET";    // or "HEAD", "PUT", "POST"
  std::string_view body;         // of PUT or POST; must outlive the exchange
  double connect_timeout_s = 0;  // includes the TLS handshake
  double head_timeout_s = 0;     // counted from when the request is sent
  bool is_repeated = false;      // a new connection goes to a newly looked up address
};

class Exchange {
 public:
  // Called ten times a second. If it returns true, the wait ends.
  using IsInterrupted = std::function<bool()>;

  // Throws std::runtime_error if libcurl fails to create a handle.
  explicit Exchange(ExchangeRequest request);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // Sends the request and waits for the head of the response. Returns nothing when the head has
  // arrived.
  std::optional<ReadError> receive_head(const IsInterrupted& is_interrupted);

  int status() const { return status_; }
  const std::vector<std::string>& headers() const { return headers_; }  // "name: value", as sent
  // Whether a connection was made, even if the request failed later.
  bool was_connected() const { return was_connected_; }
  // The start of a response that is not HTTP; empty for all others.
  const std::string& strange_start() const { return strange_start_; }

  struct Piece {
    std::size_t count = 0;           // bytes
    std::optional<ReadError> error;  // set if the request failed after `count` bytes
  };
  // Receives `size` bytes of the body, or as many as arrive within `timeout_s`. If there are fewer
  // bytes and no error, either the body has ended or the time is over; has_ended() tells which.
  Piece read(char* into, std::size_t size, double timeout_s, const IsInterrupted& is_interrupted);
  bool has_ended() const { return has_ended_ && spilled_.empty(); }

  // Ends the request. Its connection is closed unless the body had ended.
  void close();

 private:
  static std::size_t on_header(char* data, std::size_t size, std::size_t count,
                               void* self) noexcept;
  static std::size_t on_body(char* data, std::size_t size, std::size_t count, void* self) noexcept;
  void take_line(std::string_view line);
  std::size_t take_body(std::string_view data);
  std::size_t place(std::string_view data);
  // Lets libcurl work until `is_done`, the end of the response, or `latest`. Returns an error only
  // if libcurl failed.
  std::optional<ReadError> run_until(const std::function<bool()>& is_done, TimePoint latest,
                                     const IsInterrupted& is_interrupted);
  std::optional<ReadError> conclude(CURLcode result);
  bool is_head_late() const;
  ReadError failure(ReadError error, CURLcode result);

  const pid_t owner_ = getpid();
  ExchangeRequest request_;
  MultiHandle multi_;
  EasyHandle easy_;
  CurlList request_headers_;
  CurlList addresses_;
  std::array<char, CURL_ERROR_SIZE> message_{};
  TimePoint started_{};
  bool was_connected_ = false;
  int status_ = 0;
  std::vector<std::string> headers_;
  bool has_head_ = false;
  bool has_too_many_headers_ = false;
  std::string strange_start_;
  char* into_ = nullptr;  // the caller's buffer, during read()
  std::size_t room_ = 0;  // bytes left in it
  std::string spilled_;   // received, but not yet read by the caller
  bool is_paused_ = false;
  bool has_ended_ = false;
};

}  // namespace streamer
