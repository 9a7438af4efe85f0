#include "http/curl_multi.h"

#include <stdexcept>
#include <utility>

namespace streamer {
namespace {

void check(CURLMcode result) {
  if (result != CURLM_OK) throw std::runtime_error(curl_multi_strerror(result));
}

}  // namespace

CurlMulti::CurlMulti(MultiHandle multi, std::size_t max_open_connections)
    : max_open_connections_(max_open_connections) {
  use(std::move(multi));
}

void CurlMulti::add(CURL* easy) { check(curl_multi_add_handle(multi_.get(), easy)); }

void CurlMulti::remove(CURL* easy) { curl_multi_remove_handle(multi_.get(), easy); }

void CurlMulti::perform() {
  int running = 0;
  check(curl_multi_perform(multi_.get(), &running));
}

std::optional<CurlMulti::Finished> CurlMulti::next_finished() {
  int left = 0;
  while (const CURLMsg* message = curl_multi_info_read(multi_.get(), &left)) {
    // A copy, because libcurl frees the message when the request is removed.
    if (message->msg == CURLMSG_DONE) return Finished{message->easy_handle, message->data.result};
  }
  return std::nullopt;
}

void CurlMulti::wait(int timeout_ms) {
  curl_multi_poll(multi_.get(), nullptr, 0, timeout_ms, nullptr);
}

void CurlMulti::close_connections() { use(new_multi()); }

MultiHandle CurlMulti::release() {
  const std::lock_guard lock(mutex_);
  return std::move(multi_);
}

void CurlMulti::wake() {
  const std::lock_guard lock(mutex_);
  curl_multi_wakeup(multi_.get());
}

void CurlMulti::use(MultiHandle multi) {
  // Without this option, libcurl closes most connections when the last requests of a load end.
  curl_multi_setopt(multi.get(), CURLMOPT_MAXCONNECTS, static_cast<long>(max_open_connections_));
  const std::lock_guard lock(mutex_);
  multi_.swap(multi);
}

}  // namespace streamer
