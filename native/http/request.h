// Prepares a request: its headers, and libcurl's options.
#pragma once

#include <curl/curl.h>

#include <memory>
#include <string>

#include "http/object.h"
#include "http/range_response.h"

namespace streamer {

struct FreeEasy {
  void operator()(CURL* handle) const { curl_easy_cleanup(handle); }
};
using EasyHandle = std::unique_ptr<CURL, FreeEasy>;

struct FreeList {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
using CurlList = std::unique_ptr<curl_slist, FreeList>;

// Initializes libcurl for the rest of the process. Throws std::runtime_error. Call this while
// holding the GIL. Python's os.fork() also takes the GIL, so no fork happens during the
// initialization.
void start_libcurl();

// Returns the header that makes the server refuse another version (RFC 9110 §13.1). Returns an
// empty text if there is no such header for this kind of version. Then the condition is in the URL,
// or only the responses are checked.
std::string precondition_of(const RangeRequest& request);

// Returns the target's headers and the precondition for the version. If `checksum_header` is not
// empty, adds it, to request a checksum of the response.
CurlList headers_of(const RangeRequest& request, const HttpTarget& target,
                    const std::string& checksum_header);

// Sets a new request on the handle, which keeps its connections. `headers` and `addresses` must
// outlive the request. `addresses`: the addresses of the host (net/address_book.h), or null.
// `is_repeated`: the host's name is looked up again for a new connection.
void set_request(CURL* easy, const HttpTarget& target, curl_slist* headers, curl_slist* addresses,
                 double connect_timeout_s, bool is_repeated);

// Makes the request open a new connection even if others are open.
void set_new_connection(CURL* easy);

// Whether the request opened a new connection.
bool has_new_connection(CURL* easy);

// Makes the request ask for only these bytes.
void set_range(CURL* easy, const RangeRequest& request);

// Returns the address of the server that answers; with a proxy, the address of the proxy.
std::string address_of(CURL* easy);

// If this address is slower than others, makes the next request open a connection to another
// address. Must be called while the response arrives.
void avoid_slow_address(CURL* easy, const HttpTarget& target);

// Returns the addresses for set_request(); null if libcurl should look the name up.
CurlList addresses_of(const HttpTarget& target, TimePoint now, bool is_repeated);

}  // namespace streamer
