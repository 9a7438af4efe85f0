// What a request is sent with: its headers, and libcurl's options for it.
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

// Has libcurl ready, which it is for the rest of the process. Throws std::runtime_error. Python's
// os.fork() must not come between: call it under the GIL, which that takes, too.
void start_libcurl();

// The target's own, the version's precondition, and `checksum_header`, where it is not empty, which
// asks for a checksum of the answer.
CurlList headers_of(const RangeRequest& asked, const HttpTarget& target,
                    const std::string& checksum_header);

// Forgets the handle's last request, and keeps its connections. `headers` must outlive the request.
// `addresses`: what the host stands for (net/address_book.h), as long as the request, or null.
// `is_repeated`: a new connection goes to an address that is looked up anew.
void set_request(CURL* easy, const HttpTarget& target, curl_slist* headers, curl_slist* addresses,
                 double connect_timeout_s, bool is_repeated);

// Has that request make a connection, although others may be there.
void set_new_connection(CURL* easy);

// Whether it made one.
bool has_new_connection(CURL* easy);

// Has that request ask for these bytes alone.
void set_range(CURL* easy, const RangeRequest& asked);

// Of who answers; of a proxy, its own.
std::string address_of(CURL* easy);

// Has the next request make a connection elsewhere where others answer faster. While the answer
// comes.
void leave_address_if_slow(CURL* easy, const HttpTarget& target);

// What set_request() takes; null where libcurl is to look up.
CurlList addresses_of(const HttpTarget& target, TimePoint now, bool is_repeated);

}  // namespace streamer
