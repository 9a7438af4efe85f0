// What libcurl says of a request that failed, as an error of the engine. Data and lookups share it.
#pragma once

#include <curl/curl.h>

#include <string>

#include "base/read_error.h"

namespace streamer {

// `message`: what libcurl wrote into its error buffer, perhaps nothing. `has_head`: the head of the
// answer had come. `has_answered`: the server has answered before, so that its TLS works.
ReadError error_of_curl(CURLcode result, const char* message, bool has_head, bool has_answered);

// Tells apart what libcurl calls "could not connect" or "could not resolve": no file descriptor was
// left, the host does not exist, or nobody answered. For a request without an answer, right after
// it. `elapsed_s`: since it was sent. `may_look_up`: the resolver may be asked again.
void refine_connect_error(ReadError& error, const std::string& url, double elapsed_s,
                          bool may_look_up);

}  // namespace streamer
