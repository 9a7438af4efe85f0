#include "http/control_request.h"

#include <curl/curl.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "base/broken_pipe.h"
#include "base/clock.h"
#include "base/descriptors.h"
#include "http/kept_connections.h"
#include "http/request.h"

namespace streamer {
namespace {

constexpr double kLookS = 0.1;
constexpr int kPollMs = 100;
constexpr std::size_t kMostHeaders = 200;  // libcurl bounds their bytes

struct Receiver {
  ControlAnswer answer;
  std::size_t most_bytes = 0;
  bool is_full = false;
};

// libcurl is C: nothing may be thrown through it. Anything but all bytes makes it give up.
std::size_t on_header(char* data, std::size_t size, std::size_t count, void* self) noexcept {
  auto& answer = static_cast<Receiver*>(self)->answer;
  std::string_view line(data, size * count);
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.remove_suffix(1);
  try {
    if (line.starts_with("HTTP/")) answer.headers.clear();  // after 100 Continue
    if (answer.headers.size() == kMostHeaders) return 0;
    answer.headers.emplace_back(line);
    return size * count;
  } catch (...) {
    return 0;
  }
}

std::size_t on_body(char* data, std::size_t size, std::size_t count, void* self) noexcept {
  auto& [answer, most_bytes, is_full] = *static_cast<Receiver*>(self);
  const std::size_t room = most_bytes - answer.body.size();
  is_full = size * count > room;
  try {
    answer.body.append(data, std::min(size * count, room));
    return is_full ? 0 : size * count;
  } catch (...) {
    return 0;
  }
}

void set_answer(CURL* easy, const ControlRequest& request, Receiver& receiver) {
  curl_easy_setopt(easy, CURLOPT_NOBODY, request.is_head ? 1L : 0L);
  curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, static_cast<long>(request.timeout_s * 1e3));
  curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, &on_header);
  curl_easy_setopt(easy, CURLOPT_HEADERDATA, &receiver);
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, &on_body);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, &receiver);
}

// Whether the request came to its end, and well.
bool run(CURLM* multi, const std::function<bool()>& is_interrupted) {
  TimePoint look_at = after(Clock::now(), kLookS);
  for (int running = 1; running > 0;) {
    if (curl_multi_perform(multi, &running) != CURLM_OK) return false;
    if (running == 0) break;
    if (curl_multi_poll(multi, nullptr, 0, kPollMs, nullptr) != CURLM_OK) return false;
    if (Clock::now() < look_at) continue;  // to look takes the GIL
    if (is_interrupted()) return false;
    look_at = after(Clock::now(), kLookS);
  }
  int left = 0;
  const CURLMsg* const message = curl_multi_info_read(multi, &left);
  return message != nullptr && message->msg == CURLMSG_DONE && message->data.result == CURLE_OK;
}

}  // namespace

std::optional<ControlAnswer> ask(const ControlRequest& request,
                                 const std::function<bool()>& is_interrupted) {
  // Each request needs a handle with descriptors of its own, which the caller's other way shares.
  if (are_most_descriptors_open()) return std::nullopt;
  const BrokenPipesIgnored by_libcurl;  // on the caller's thread
  HttpTarget target = request.target;
  target.endpoint = Endpoint::of(target.url, target.proxy);
  MultiHandle multi = KeptConnections::of_process().take(*target.endpoint);
  const EasyHandle easy(curl_easy_init());
  if (!easy) throw std::runtime_error("libcurl gives no handle");
  const CurlList headers = headers_of(RangeRequest{}, target, "");
  const CurlList addresses = addresses_of(target, Clock::now(), false);
  Receiver receiver{{}, request.most_bytes, false};
  set_request(easy.get(), target, headers.get(), addresses.get(), request.connect_timeout_s, false);
  set_answer(easy.get(), request, receiver);
  if (curl_multi_add_handle(multi.get(), easy.get()) != CURLM_OK) return std::nullopt;
  const bool is_whole = run(multi.get(), is_interrupted);
  curl_multi_remove_handle(multi.get(), easy.get());
  if (!is_whole && !(request.may_be_cut && receiver.is_full)) return std::nullopt;
  long status = 0;
  curl_easy_getinfo(easy.get(), CURLINFO_RESPONSE_CODE, &status);
  receiver.answer.status = static_cast<int>(status);
  if (is_whole) KeptConnections::of_process().keep(std::move(multi), target.endpoint);
  return std::move(receiver.answer);
}

}  // namespace streamer
