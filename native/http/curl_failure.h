// What libcurl says of a request that failed, as an error of the engine: for data and for requests
// about objects alike.
#pragma once

#include <curl/curl.h>

#include "base/read_error.h"

namespace streamer {

// `message`: what libcurl wrote into its error buffer, perhaps nothing. `has_head`: the head of the
// answer had come. `has_answered`: the server has answered before, so that its TLS works.
ReadError error_of_curl(CURLcode result, const char* message, bool has_head, bool has_answered);

}  // namespace streamer
