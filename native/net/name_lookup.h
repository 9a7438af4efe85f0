// Finds out whether a host's name does not exist, or whether no name server answered.
//
// libcurl reports both as "could not resolve host". But a name that does not exist (NXDOMAIN, or no
// address) is a final error, while a failing or silent name server (SERVFAIL, time-out) is worth a
// retry. So the resolver is asked again, and its own code decides.
#pragma once

#include <string>
#include <string_view>

#include "base/read_error.h"

namespace streamer {

// Returns the error for a code of getaddrinfo(3). Pure.
ErrorCode error_of_lookup(int code);

// Returns the host of a URL, without user, port and the brackets of an IPv6 address. Pure.
std::string host_of(std::string_view url);

// Asks the resolver of this machine. The call takes as long as the name servers take, so use it
// only if they have just answered quickly.
ErrorCode look_up(const std::string& host);

}  // namespace streamer
