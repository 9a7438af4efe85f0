// Tells a proxy's failures from those of the server behind it.
//
// To a server over TLS a proxy makes a tunnel: what comes through it is the server's, and what is
// answered before is the proxy's. Over plain HTTP a proxy answers in the server's place. A 502, 503
// or 504 counts as the proxy's unless it has a word or a request id of the storage.
#pragma once

#include <curl/curl.h>

#include "base/read_error.h"
#include "http/object.h"

namespace streamer {

// Writes into the error of a request whether its proxy caused it, or may have, and the proxy's host
// and port.
// `result`: libcurl's, of the request, which `easy` was sent with.
void blame_proxy(ReadError& error, CURLcode result, CURL* easy, const HttpTarget& target);

}  // namespace streamer
