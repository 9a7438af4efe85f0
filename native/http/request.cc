#include "http/request.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>

#include "net/proxy.h"

namespace streamer {
namespace {

constexpr long kAddressesAgeS = 60;  // libcurl's default
// Firewalls commonly refuse requests without a user agent. A header of the target overrides this
// one.
constexpr const char* kUserAgent = "streamer/" STREAMER_VERSION;

// Returns the Host header for a host with a dot at its end; empty for any other host. The dot tells
// the resolver that the name is complete, so it stays in the URL. Proxies and certificates name the
// host without it.
std::string dotless_host_of(const HttpTarget& target) {
  const std::string& url = target.url;
  const std::size_t scheme = url.find("://");
  if (scheme == std::string::npos) return {};
  std::string place = url.substr(scheme + 3, url.find_first_of("/?#", scheme + 3) - (scheme + 3));
  place.erase(0, place.rfind('@') + 1);
  const std::size_t end =
      place.ends_with("]") ? place.size() : std::min(place.rfind(':'), place.size());
  if (end < 2 || place[end - 1] != '.') return {};
  place.erase(end - 1, 1);
  for (const std::string& line : target.headers) {
    if (equals_ignoring_case(line.substr(0, 5), "host:")) return {};
  }
  return "Host: " + place;
}

// Sets the URL, the proxy and the TLS options.
void set_url_and_tls(CURL* easy, const HttpTarget& target) {
  curl_easy_setopt(easy, CURLOPT_URL, target.url.c_str());
  // A key may contain "..", which must not be resolved, because the signature covers the key as it
  // is.
  curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);
#if LIBCURL_VERSION_NUM >= 0x075500
  curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
#else
  curl_easy_setopt(easy, CURLOPT_PROTOCOLS, static_cast<long>(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
  // A signature must not be sent to another host.
  curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(easy, CURLOPT_SSL_VERIFYPEER, 1L);
  curl_easy_setopt(easy, CURLOPT_SSL_VERIFYHOST, target.checks_host ? 2L : 0L);
  if (!target.ca_file.empty()) curl_easy_setopt(easy, CURLOPT_CAINFO, target.ca_file.c_str());
  if (!target.client_cert.empty()) {
    curl_easy_setopt(easy, CURLOPT_SSLCERT, target.client_cert.c_str());
    const std::string& key = target.client_key.empty() ? target.client_cert : target.client_key;
    curl_easy_setopt(easy, CURLOPT_SSLKEY, key.c_str());
  }
  curl_easy_setopt(easy, CURLOPT_PROXY, proxy_of(target.url, target.proxy).c_str());
  curl_easy_setopt(easy, CURLOPT_NOPROXY, hosts_without_proxy().c_str());
  // The response of a proxy to CONNECT is not from the server, so its status and headers are
  // ignored.
  curl_easy_setopt(easy, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
}

// A forked child has copies of our sockets, which would keep the connections open. So the parent
// shuts a connection down before it closes its socket. The child only closes its copy, and the
// parent's connection continues.
int end_connection(void* owner, curl_socket_t socket) {
  if (reinterpret_cast<std::intptr_t>(owner) == getpid()) shutdown(socket, SHUT_RDWR);
  return close(socket);
}

void set_connection(CURL* easy, double connect_timeout_s, bool is_repeated, bool has_addresses) {
  // One connection per request in flight. HTTP/2 would put all requests on one connection.
  curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
  curl_easy_setopt(easy, CURLOPT_CLOSESOCKETFUNCTION, end_connection);
  curl_easy_setopt(easy, CURLOPT_CLOSESOCKETDATA,
                   reinterpret_cast<void*>(static_cast<std::intptr_t>(getpid())));
  curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(connect_timeout_s * 1e3));
  curl_easy_setopt(easy, CURLOPT_DNS_SHUFFLE_ADDRESSES, 1L);  // use all addresses of a name
  // Makes libcurl look the name up again, which may lead to another server, unless addresses are
  // set.
  if (is_repeated) {
    curl_easy_setopt(easy, CURLOPT_DNS_CACHE_TIMEOUT, has_addresses ? kAddressesAgeS : 0L);
  }
}

}  // namespace

void start_libcurl() {
  static const CURLcode is_ready = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (is_ready != CURLE_OK) throw std::runtime_error("libcurl cannot start");
}

std::string precondition_of(const RangeRequest& request) {
  if (request.version.empty() || !request.has_condition) return {};
  if (equals_ignoring_case(request.version_header, "ETag")) {
    const bool is_weak = request.version.starts_with("W/");
    return is_weak ? "" : "If-Match: " + request.version;
  }
  if (equals_ignoring_case(request.version_header, "Last-Modified")) {
    return "If-Unmodified-Since: " + request.version;
  }
  return {};
}

CurlList headers_of(const RangeRequest& request, const HttpTarget& target,
                    const std::string& checksum_header) {
  CurlList headers;
  const auto add = [&headers](const std::string& line) {
    if (!line.empty()) headers.reset(curl_slist_append(headers.release(), line.c_str()));
  };
  for (const std::string& line : target.headers) add(line);
  add(dotless_host_of(target));
  add("Accept-Encoding: identity");
  add(checksum_header);
  add(precondition_of(request));
  return headers;
}

void set_range(CURL* easy, const RangeRequest& request) {
  const std::string range = std::to_string(request.begin) + "-" + std::to_string(request.end - 1);
  curl_easy_setopt(easy, CURLOPT_RANGE, range.c_str());
}

void set_request(CURL* easy, const HttpTarget& target, curl_slist* headers, curl_slist* addresses,
                 double connect_timeout_s, bool is_repeated) {
  curl_easy_reset(easy);
  curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
  curl_easy_setopt(easy, CURLOPT_USERAGENT, kUserAgent);
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);  // required in a program with several threads
#if LIBCURL_VERSION_NUM >= 0x075700
  // A cancelled request must not wait for a name server.
  curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L);
#endif
  set_url_and_tls(easy, target);
  set_connection(easy, connect_timeout_s, is_repeated, addresses != nullptr);
  if (addresses != nullptr) {
    curl_easy_setopt(easy, CURLOPT_RESOLVE, addresses);
    curl_easy_setopt(easy, CURLOPT_DNS_SHUFFLE_ADDRESSES, 0L);  // keep the order of the addresses
  }
}

void set_new_connection(CURL* easy) { curl_easy_setopt(easy, CURLOPT_FRESH_CONNECT, 1L); }

bool has_new_connection(CURL* easy) {
  long made = 0;
  curl_easy_getinfo(easy, CURLINFO_NUM_CONNECTS, &made);
  return made > 0;
}

std::string address_of(CURL* easy) {
  const char* address = nullptr;
  curl_easy_getinfo(easy, CURLINFO_PRIMARY_IP, &address);
  return address == nullptr ? "" : address;
}

void avoid_slow_address(CURL* easy, const HttpTarget& target) {
  const bool is_slow = target.endpoint->addresses->is_left_out(address_of(easy), Clock::now());
  if (is_slow) curl_easy_setopt(easy, CURLOPT_FORBID_REUSE, 1L);
}

CurlList addresses_of(const HttpTarget& target, TimePoint now, bool is_repeated) {
  CurlList addresses;
#if LIBCURL_VERSION_NUM >= 0x074b00  // older versions would keep the addresses forever
  AddressBook& book = *target.endpoint->addresses;
  const bool is_left_to_curl = !target.proxy.empty() || (is_repeated && !book.has_left_out(now));
  const std::string entry = is_left_to_curl ? "" : book.next_entry(now);
  if (!entry.empty()) addresses.reset(curl_slist_append(nullptr, entry.c_str()));
#else
  (void)target;
  (void)now;
  (void)is_repeated;
#endif
  return addresses;
}

}  // namespace streamer
