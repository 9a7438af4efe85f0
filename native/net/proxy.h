// The proxy for a server: the proxy of the option, otherwise the one of the environment.
//
// The variables have the same meaning as in Python's lookups: names in upper and in lower case are
// read, and a blank value counts as unset. libcurl applies NO_PROXY, so the functions here return a
// proxy also for the hosts of NO_PROXY.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace streamer {

// Returns the proxy's URL, with its password; empty if there is no proxy. `named` is the proxy of
// the option, and takes precedence; if it is kDirect, there is none.
inline constexpr std::string_view kDirect = "direct:";
std::string proxy_of(std::string_view url, const std::string& named);

// Returns NO_PROXY, the hosts that are reached without the proxy; empty if it is not set.
std::string hosts_without_proxy();

// Returns a number that distinguishes the routes to a server; 0 without a proxy. The number is a
// hash, because URLs of proxies contain passwords.
std::size_t route_to(std::string_view url, const std::string& named);

}  // namespace streamer
