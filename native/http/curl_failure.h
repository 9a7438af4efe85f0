// Turns libcurl's failure of a request into an error of the engine, for both reads and lookups.
#pragma once

#include <curl/curl.h>

#include <string>

#include "base/read_error.h"

namespace streamer {

// `message`: libcurl's error buffer, may be empty. `has_head`: the head of the response was
// complete. `has_answered`: the server has answered before, so its TLS works.
ReadError error_of_curl(CURLcode result, const char* message, bool has_head, bool has_answered);

// Finds the cause of libcurl's "could not connect" or "could not resolve": no file descriptor was
// left, the host does not exist, or no server answered. Call this right after a request without a
// response. `elapsed_s`: time since the request was sent. `may_look_up`: whether the resolver may
// be asked again.
void refine_connect_error(ReadError& error, const std::string& url, double elapsed_s,
                          bool may_look_up);

}  // namespace streamer
