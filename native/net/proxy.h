// The proxy for a server: the proxy of the option, else the one of the environment.
//
// The variables have the same meaning as for Python's lookups: upper and lower case count, blank
// values do not. libcurl applies NO_PROXY, so the functions here return a proxy for its hosts, too.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace streamer {

// Returns the proxy's URL, with its password; empty for none. `named` is the proxy of the option,
// and wins.
std::string proxy_of(std::string_view url, const std::string& named);

// Whether NO_PROXY may name a host.
bool has_hosts_without_proxy();

// Returns a number that distinguishes the routes to a server; 0 without a proxy. It is a hash,
// because URLs of proxies contain passwords.
std::size_t route_to(std::string_view url, const std::string& named);

}  // namespace streamer
