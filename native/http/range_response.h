// Is this HTTP answer exactly the byte range that was asked for?
//
// One pure function decides for every HTTP storage. Servers and proxies are known to answer a range
// with a shorter one, with another one, with the whole object, with an error document under 200, or
// compressed; each of these is refused here, before a byte reaches a tensor. (RFC 9110 §14 and
// §15.3.7.)
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/read_error.h"
#include "http/demanded_pause.h"

namespace streamer {

// What was asked. `size` and `version` are what the session pinned.
struct RangeRequest {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;  // half-open
  std::uint64_t size = 0;
  std::string version;                  // what version_header must say, or empty: not known yet
  std::string version_header = "ETag";  // which header tells the version; empty: none does
};

// The status line and the headers that matter, filled in line by line.
struct ResponseHead {
  ResponseHead() = default;
  explicit ResponseHead(std::string header, std::string other = {})
      : version_header(std::move(header)), checksum_header(std::move(other)) {}

  std::string version_header = "ETag";  // the header whose value goes to `version`
  std::string checksum_header;          // and to `checksum`

  int status = 0;
  std::string content_range;
  std::optional<std::uint64_t> content_length;
  std::string content_encoding;
  std::string content_type;
  std::string version;
  std::string checksum;
  std::string request_id;
  PauseHeaders pause;

  // Takes one line as the server sent it. A new status line starts a new head (after 100 Continue).
  void take_line(std::string_view line);
};

// S3 may fail after it has sent status 200: then the body is an XML error
// document, to be given to check_range_response whole.
bool may_be_error_document(const ResponseHead& head);

// Nothing when the body that follows is the range; otherwise why not. For error statuses `body` is
// the start of the error document; its <Code> and <Message> are used.
std::optional<ReadError> check_range_response(const RangeRequest& asked, const ResponseHead& head,
                                              std::string_view body);

// Names of headers are compared like this.
bool equals_ignoring_case(std::string_view a, std::string_view b);

// The text of the first <tag> of an XML document, or empty.
std::string_view xml_text(std::string_view document, std::string_view tag);

}  // namespace streamer
