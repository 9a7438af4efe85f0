// Distinguishes failures of a proxy from failures of the server behind it.
//
// For a TLS server, a proxy opens a tunnel. A response through the tunnel is from the server, and a
// response before it is from the proxy. Over plain HTTP, the proxy may answer in place of the
// server. A 502, 503 or 504 then counts as a failure of the proxy, unless it has an error code or a
// request id of the storage.
#pragma once

#include <curl/curl.h>

#include "base/read_error.h"
#include "http/object.h"

namespace streamer {

// If the proxy caused the error of a request, or may have caused it, records this in the error with
// the proxy's host and port. `result` is libcurl's result of the request, and `easy` its handle.
void blame_proxy(ReadError& error, CURLcode result, CURL* easy, const HttpTarget& target);

}  // namespace streamer
