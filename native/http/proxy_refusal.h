// Distinguishes a proxy's failures from those of the server behind it.
//
// To a TLS server, a proxy opens a tunnel: responses through the tunnel are the server's, and a
// response before it is the proxy's. Over plain HTTP the proxy answers in the server's place. Then
// a 502, 503 or 504 counts as the proxy's unless it has an error code or a request id of the
// storage.
#pragma once

#include <curl/curl.h>

#include "base/read_error.h"
#include "http/object.h"

namespace streamer {

// Records in the error of a request that its proxy caused it, or may have caused it, and the
// proxy's host and port. `result` is libcurl's result of the request, and `easy` its handle.
void blame_proxy(ReadError& error, CURLcode result, CURL* easy, const HttpTarget& target);

}  // namespace streamer
