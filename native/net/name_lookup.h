// Does a host's name not exist, or did nobody answer the question?
//
// libcurl says of both that it could not resolve the host. They call for the opposite: a name that
// does not exist (NXDOMAIN, or no address) is final at once, a name server that fails or is silent
// (SERVFAIL, time-out) is asked again. So the resolver is asked once more, and its own code read.
#pragma once

#include <string>
#include <string_view>

#include "base/read_error.h"

namespace streamer {

// What a code of getaddrinfo(3) means. Pure.
ErrorCode error_of_lookup(int code);

// The host of a URL, without user, port and the brackets of an IPv6 address. Pure.
std::string host_of(std::string_view url);

// Asks the resolver of this machine. It may take as long as the name servers do: call it only where
// they have just answered at once.
ErrorCode look_up(const std::string& host);

}  // namespace streamer
