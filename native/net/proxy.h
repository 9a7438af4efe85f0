// Which proxy leads to a server: the one that is named, else the one that the environment names.
//
// The variables count as for Python's lookups: in either case, blank ones not. NO_PROXY is left to
// libcurl, so a proxy is named here for its hosts, too.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace streamer {

// The proxy's URL, with its password; empty for none. `named` wins.
std::string proxy_of(std::string_view url, const std::string& named);

// Whether NO_PROXY may name a host.
bool has_hosts_without_proxy();

// Tells the ways to a server apart. A number, as URLs of proxies hold passwords; zero if no proxy
// leads there.
std::size_t route_to(std::string_view url, const std::string& named);

}  // namespace streamer
