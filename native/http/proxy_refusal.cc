#include "http/proxy_refusal.h"

#include <charconv>
#include <string>
#include <string_view>

#include "net/endpoint.h"
#include "net/proxy.h"

namespace streamer {
namespace {

constexpr int kWantsCredentials = 407;  // only proxies send this status (RFC 9110, 15.5.8)

// Whether gateways, and overloaded proxies, send this status (RFC 9110, 15.6).
bool is_of_gateway(int status) { return status == 502 || status == 503 || status == 504; }

bool is_plain(std::string_view url) { return url.starts_with("http:"); }

long port_of(std::string_view url) {
  const std::string server = endpoint_key(url);
  const std::string_view port = std::string_view(server).substr(server.rfind(':') + 1);
  long number = is_plain(url) ? 80 : 443;
  std::from_chars(port.data(), port.data() + port.size(), number);
  return number;
}

// Returns host and port, without scheme and user.
std::string place_of(const std::string& proxy) {
  const std::string server = endpoint_key(proxy);
  const std::size_t scheme_end = server.find("://");
  return scheme_end == std::string::npos ? server : server.substr(scheme_end + 3);
}

// Whether libcurl says that it could not connect to this place: "Failed to connect to HOST port N".
bool names_place(std::string_view message, const std::string& place) {
  const std::size_t colon = place.rfind(':');
  const std::string host = place.substr(0, colon);
  if (message.find(" via " + host) != std::string_view::npos) return true;
  const std::string named = " to " + host + " port " + place.substr(colon + 1);
  const std::size_t begin = message.find(named);
  return begin != std::string_view::npos && message.substr(begin + named.size()).starts_with(' ');
}

// Returns the proxy that the request used; empty if there was none. libcurl obeys NO_PROXY, but
// reports its decision only from 8.7 on (CURLINFO_USED_PROXY). So the port decides: a direct
// connection goes to the port of the URL. Without a connection, libcurl's message decides.
std::string proxy_asked(const ReadError& error, CURLcode result, CURL* easy,
                        const HttpTarget& target) {
  std::string proxy = proxy_of(target.url, target.proxy);
  if (proxy.empty() || hosts_without_proxy().empty()) return proxy;
  long port = 0;
  curl_easy_getinfo(easy, CURLINFO_PRIMARY_PORT, &port);
  const bool is_connected = port > 0 && port != port_of(target.url);
  const bool is_refused =
      result == CURLE_COULDNT_RESOLVE_PROXY || names_place(error.detail, place_of(proxy));
  return is_connected || is_refused ? proxy : "";
}

bool is_unreached(CURLcode result, CURL* easy) {
  curl_off_t connected_us = 0;
  curl_easy_getinfo(easy, CURLINFO_CONNECT_TIME_T, &connected_us);
  return result == CURLE_COULDNT_CONNECT || result == CURLE_COULDNT_RESOLVE_PROXY ||
         (result == CURLE_OPERATION_TIMEDOUT && connected_us == 0);
}

void blame(ReadError& error, const std::string& place, std::string detail) {
  error.is_of_proxy = true;
  error.proxy = place;
  error.detail = std::move(detail);
}

void blame_for_answer(ReadError& error, const std::string& place) {
  const bool is_of_storage = !error.storage_code.empty() || !error.request_id.empty();
  if (error.http_status == kWantsCredentials) {
    blame(error, place, "the proxy " + place + " wants credentials");
  } else if (is_of_gateway(error.http_status) && !is_of_storage) {
    blame(error, place, "the proxy " + place + ", or the server behind it, failed");
  } else {
    error.proxy = place;
  }
}

}  // namespace

void blame_proxy(ReadError& error, CURLcode result, CURL* easy, const HttpTarget& target) {
  const std::string proxy = proxy_asked(error, result, easy, target);
  if (proxy.empty()) return;
  const std::string place = place_of(proxy);
  long tunnel_status = 0;
  curl_easy_getinfo(easy, CURLINFO_HTTP_CONNECTCODE, &tunnel_status);
  const bool is_answered = error.http_status != 0;
  if (!is_answered && tunnel_status >= 300) {
    error.code = ErrorCode::kHttpStatus;
    error.http_status = static_cast<int>(tunnel_status);
    blame(error, place, "the proxy " + place + " refused to open a tunnel to the server");
  } else if (!is_answered && is_unreached(result, easy)) {
    blame(error, place, "no connection to the proxy " + place + ": " + error.detail);
  } else if (is_answered && is_plain(target.url) && !proxy.starts_with("socks")) {
    blame_for_answer(error, place);
  }
}

}  // namespace streamer
