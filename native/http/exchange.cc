#include "http/exchange.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "base/broken_pipe.h"
#include "http/curl_failure.h"
#include "http/proxy_refusal.h"
#include "http/secrets.h"

namespace streamer {
namespace {

constexpr double kLookS = 0.1;
constexpr int kPollMs = 100;
constexpr std::size_t kMostHeaders = 200;  // libcurl limits their bytes
constexpr std::size_t kQuotedBytes = 4096;

// Returns the status in a line like "HTTP/1.1 200 OK".
int status_of(std::string_view line) {
  int status = 0;
  const std::size_t space = line.find(' ');
  if (space != std::string_view::npos) {
    std::from_chars(line.data() + space + 1, line.data() + line.size(), status);
  }
  return status;
}

void set_method(CURL* easy, const ExchangeRequest& request) {
  if (request.method == "HEAD") {
    curl_easy_setopt(easy, CURLOPT_NOBODY, 1L);
  } else if (request.method != "GET") {
    curl_easy_setopt(easy, CURLOPT_POST, 1L);
    curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE,
                     static_cast<curl_off_t>(request.body.size()));
    // With a null pointer, libcurl would ask a callback for the body, even for an empty body.
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, request.body.empty() ? "" : request.body.data());
    curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, request.method.c_str());
  }
}

}  // namespace

Exchange::Exchange(ExchangeRequest request) : request_(std::move(request)) {
  HttpTarget& target = request_.target;
  target.endpoint = Endpoint::of(target.url, target.proxy);
  if (!request_.body.empty()) target.headers.emplace_back("Expect:");  // it would cost a round trip
  multi_ = KeptConnections::of_process().take(*target.endpoint);
  easy_.reset(curl_easy_init());
  if (!easy_) throw std::runtime_error("libcurl cannot create a handle");
  request_headers_ = headers_of(RangeRequest{}, target, "");
  addresses_ = addresses_of(target, Clock::now(), request_.is_repeated);
  CURL* easy = easy_.get();
  set_request(easy, target, request_headers_.get(), addresses_.get(), request_.connect_timeout_s,
              request_.is_repeated);
  // The connection of the last attempt may have been stale, or have led to a broken server.
  if (request_.is_repeated) set_new_connection(easy);
  set_method(easy, request_);
#if LIBCURL_VERSION_NUM >= 0x074000
  // Allows HTTP/0.9, so that a message can quote a response that is not HTTP.
  curl_easy_setopt(easy, CURLOPT_HTTP09_ALLOWED, 1L);
#endif
  curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, &Exchange::on_header);
  curl_easy_setopt(easy, CURLOPT_HEADERDATA, this);
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, &Exchange::on_body);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, this);
  curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, message_.data());
}

Exchange::~Exchange() { close(); }

void Exchange::close() {
  if (!multi_) return;
  // Closing a TLS connection writes to it, which would end the parent's connection.
  if (getpid() != owner_) {
    (void)easy_.release();
    (void)multi_.release();
    return;
  }
  const BrokenPipesIgnored by_libcurl;  // it writes on the caller's thread
  curl_multi_remove_handle(multi_.get(), easy_.get());
  easy_.reset();
  multi_.reset();
}

std::optional<ReadError> Exchange::receive_head(const IsInterrupted& is_interrupted) {
  const BrokenPipesIgnored by_libcurl;  // it writes on the caller's thread
  started_ = Clock::now();
  if (curl_multi_add_handle(multi_.get(), easy_.get()) != CURLM_OK) {
    return error_of(ErrorCode::kOutOfMemory, "libcurl accepts no further request");
  }
  return run_until([this] { return has_head_; }, TimePoint::max(), is_interrupted);
}

Exchange::Piece Exchange::read(char* into, std::size_t size, double timeout_s,
                               const IsInterrupted& is_interrupted) {
  if (getpid() != owner_) {
    return {0, error_of(ErrorCode::kConnect, "the connection belongs to the parent process")};
  }
  const BrokenPipesIgnored by_libcurl;  // it writes on the caller's thread
  into_ = into;
  room_ = size;
  spilled_.erase(0, place(spilled_));
  Piece piece;
  if (room_ > 0 && !has_ended_) {
    if (std::exchange(is_paused_, false)) curl_easy_pause(easy_.get(), CURLPAUSE_CONT);
    piece.error =
        run_until([this] { return room_ == 0; }, after(Clock::now(), timeout_s), is_interrupted);
  }
  piece.count = size - room_;
  into_ = nullptr;
  room_ = 0;
  return piece;
}

std::optional<ReadError> Exchange::run_until(const std::function<bool()>& is_done, TimePoint latest,
                                             const IsInterrupted& is_interrupted) {
  TimePoint look_at = after(Clock::now(), kLookS);
  for (int running = 1;;) {
    if (curl_multi_perform(multi_.get(), &running) != CURLM_OK) {
      return error_of(ErrorCode::kConnect, "libcurl failed");
    }
    int left = 0;
    const CURLMsg* const message = curl_multi_info_read(multi_.get(), &left);
    if (message != nullptr && message->msg == CURLMSG_DONE) return conclude(message->data.result);
    if (is_done()) return std::nullopt;
    const TimePoint now = Clock::now();
    if (now >= latest) return std::nullopt;
    if (is_head_late()) {
      return failure(error_of(ErrorCode::kTimeout, "no answer in time"), CURLE_OPERATION_TIMEDOUT);
    }
    if (now >= look_at) {  // the check takes the GIL
      if (is_interrupted()) return error_of(ErrorCode::kTimeout, "interrupted");
      look_at = after(now, kLookS);
    }
    if (curl_multi_poll(multi_.get(), nullptr, 0, kPollMs, nullptr) != CURLM_OK) {
      return error_of(ErrorCode::kConnect, "libcurl failed");
    }
  }
}

bool Exchange::is_head_late() const {
  if (has_head_) return false;
  curl_off_t sent_us = 0;  // connection and TLS handshake; 0 until they are done
  curl_easy_getinfo(easy_.get(), CURLINFO_PRETRANSFER_TIME_T, &sent_us);
  const double latest_s = static_cast<double>(sent_us) / 1e6 + request_.head_timeout_s;
  return sent_us > 0 && seconds_between(started_, Clock::now()) > latest_s;
}

std::optional<ReadError> Exchange::conclude(CURLcode result) {
  has_ended_ = true;
  curl_multi_remove_handle(multi_.get(), easy_.get());
  if (!strange_start_.empty()) {
    // Earlier responses on the same connection may have left bytes behind. A new connection has
    // none.
    const ErrorCode code =
        has_new_connection(easy_.get()) ? ErrorCode::kHttpStatus : ErrorCode::kConnect;
    return failure(error_of(code, "the answer is not HTTP"), result);
  }
  if (has_too_many_headers_) {
    return failure(
        error_of(ErrorCode::kEndlessHeaders, "the headers of the server's answer do not end"),
        CURLE_OK);
  }
  if (result == CURLE_OK && has_head_) {
    KeptConnections::of_process().keep(std::move(multi_), request_.target.endpoint);
    easy_.reset();
    return std::nullopt;
  }
  const bool has_answered = request_.target.endpoint->has_answered();
  return failure(error_of_curl(result, message_.data(), has_head_, has_answered), result);
}

// Refines a failure: libcurl has one code for several causes, and does not say which side failed.
ReadError Exchange::failure(ReadError error, CURLcode result) {
  long os_error = 0;
  curl_easy_getinfo(easy_.get(), CURLINFO_OS_ERRNO, &os_error);
  curl_off_t connected_us = 0;
  curl_easy_getinfo(easy_.get(), CURLINFO_CONNECT_TIME_T, &connected_us);
  was_connected_ = connected_us > 0 || !strange_start_.empty();
  if (result == CURLE_COULDNT_CONNECT) error.os_error = static_cast<int>(os_error);
  const double elapsed_s = seconds_between(started_, Clock::now());
  if (!has_head_) refine_connect_error(error, request_.target.url, elapsed_s, true);
  if (error.code == ErrorCode::kIo) return error;  // no request was sent
  error.elapsed_s = elapsed_s;
  blame_proxy(error, result, easy_.get(), request_.target);
  mask_secrets(error, request_.target);
  return error;
}

// libcurl is written in C, so nothing may be thrown through it. If the result is not the number of
// bytes, libcurl ends the request.
std::size_t Exchange::on_header(char* data, std::size_t size, std::size_t count,
                                void* self) noexcept {
  auto& exchange = *static_cast<Exchange*>(self);
  try {
    exchange.take_line({data, size * count});
    return exchange.has_too_many_headers_ ? 0 : size * count;
  } catch (...) {
    return 0;
  }
}

void Exchange::take_line(std::string_view line) {
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.remove_suffix(1);
  if (line.starts_with("HTTP/")) {
    headers_.clear();
    status_ = status_of(line);
  } else if (line.empty()) {
    has_head_ = status_ >= 200;  // after 100 Continue, another head follows
  } else if (has_head_) {
    return;  // trailers are ignored
  } else if (headers_.size() == kMostHeaders) {
    has_too_many_headers_ = true;
  } else {
    headers_.emplace_back(line);
  }
}

std::size_t Exchange::on_body(char* data, std::size_t size, std::size_t count,
                              void* self) noexcept {
  try {
    return static_cast<Exchange*>(self)->take_body({data, size * count});
  } catch (...) {
    return 0;
  }
}

std::size_t Exchange::take_body(std::string_view data) {
  if (!has_head_) {
    strange_start_ = data.substr(0, kQuotedBytes);
    return 0;
  }
  if (room_ == 0) {
    is_paused_ = true;
    return CURL_WRITEFUNC_PAUSE;
  }
  spilled_.append(data.substr(place(data)));
  return data.size();
}

// Copies as many bytes as fit into the caller's buffer, and returns their number.
std::size_t Exchange::place(std::string_view data) {
  const std::size_t fitting = std::min(room_, data.size());
  if (fitting == 0) return 0;
  std::memcpy(into_, data.data(), fitting);
  into_ += fitting;
  room_ -= fitting;
  return fitting;
}

}  // namespace streamer
