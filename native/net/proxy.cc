#include "net/proxy.h"

#include <cstdlib>
#include <cstring>
#include <functional>

namespace streamer {
namespace {

// Returns a variable's value; null if it is unset or blank. The Python side has the same rule.
const char* variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr || value[std::strspn(value, " \t\r\n\v\f")] == '\0' ? nullptr : value;
}

}  // namespace

// libcurl's own rules differ in two ways. libcurl takes a blank value for a proxy. libcurl never
// reads HTTP_PROXY, because a web server may set this variable from a header of its client
// ("httpoxy"). Python ignores it only if REQUEST_METHOD is set, as in a program that a web server
// started.
std::string proxy_of(std::string_view url, const std::string& named) {
  if (named == kDirect) return "";
  if (!named.empty()) return named;
  const bool is_plain = url.starts_with("http:");
  const char* const lower = is_plain ? "http_proxy" : "https_proxy";
  const char* const upper = is_plain ? "HTTP_PROXY" : "HTTPS_PROXY";
  const bool is_of_web_server = is_plain && std::getenv("REQUEST_METHOD") != nullptr;
  for (const char* name : {lower, is_of_web_server ? lower : upper, "all_proxy", "ALL_PROXY"}) {
    if (const char* const value = variable(name)) return value;
  }
  return "";
}

std::string hosts_without_proxy() {
  for (const char* name : {"no_proxy", "NO_PROXY"}) {
    if (const char* const value = variable(name)) return value;
  }
  return "";
}

std::size_t route_to(std::string_view url, const std::string& named) {
  const std::string proxy = proxy_of(url, named);
  return proxy.empty() ? 0 : std::hash<std::string>{}(proxy + '\n' + hosts_without_proxy());
}

}  // namespace streamer
