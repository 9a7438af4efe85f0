// What a ranged GET is sent with: its headers, and libcurl's options for it.
#pragma once

#include <curl/curl.h>

#include <memory>
#include <string>

#include "http/object.h"
#include "http/range_response.h"

namespace streamer {

struct FreeHeaders {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
using RequestHeaders = std::unique_ptr<curl_slist, FreeHeaders>;

// The target's own, the version's precondition, and `checksum_header`, where it is not empty, which
// asks for a checksum of the answer.
RequestHeaders headers_of(const RangeRequest& asked, const HttpTarget& target,
                          const std::string& checksum_header);

// Forgets the handle's last request, and keeps its connections. `headers` must outlive the request.
// `is_repeated`: on a new connection, to an address that is looked up anew.
void set_request(CURL* easy, const RangeRequest& asked, const HttpTarget& target,
                 curl_slist* headers, double connect_timeout_s, bool is_repeated);

}  // namespace streamer
