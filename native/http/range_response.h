// Checks that an HTTP response is exactly the requested byte range.
//
// One pure function decides this for every HTTP storage. Servers and proxies are known to answer a
// range with a shorter range, another range, the whole object, an error document under status 200,
// or compressed bytes. All of these are refused here, before a byte reaches a tensor. (RFC 9110 §14
// and §15.3.7.)
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/read_error.h"
#include "http/demanded_pause.h"

namespace streamer {

// The requested range. The session has pinned `size` and `version`.
struct RangeRequest {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;  // half-open
  std::uint64_t size = 0;
  std::string version;                  // expected value of version_header; empty: not pinned yet
  std::string version_header = "ETag";  // the header with the version; empty if no header has it
  bool has_condition = true;            // the request names the version, see precondition_of()
};

// The status line and the relevant headers, filled in line by line.
struct ResponseHead {
  ResponseHead() = default;
  explicit ResponseHead(std::string header, std::string other = {})
      : version_header(std::move(header)), checksum_header(std::move(other)) {}

  std::string version_header = "ETag";  // the header that is stored in `version`
  std::string checksum_header;          // the header that is stored in `checksum`

  int status = 0;
  std::string content_range;
  std::optional<std::uint64_t> content_length;
  std::string content_encoding;
  std::string content_type;
  std::string stored_encoding;  // of the object, if Google Cloud Storage decodes it
  std::string version;
  std::string checksum;
  std::string request_id;
  PauseHeaders pause;

  // Parses one line as the server sent it. A new status line starts a new head (after 100
  // Continue).
  void take_line(std::string_view line);
};

// Compares two versions weakly (RFC 9110 §8.8.3.2): a server may call an ETag weak only while it is
// young.
bool is_same_version(std::string_view one, std::string_view other);

// Whether the body may be an XML error document. S3 may fail after it has sent status 200.
// check_range_response() then needs the whole body.
bool may_be_error_document(const ResponseHead& head);

// Returns nothing if the body that follows is the range, else the error. For an error status,
// `body` is the start of the error document; its <Code> and <Message> go into the error.
std::optional<ReadError> check_range_response(const RangeRequest& request, const ResponseHead& head,
                                              std::string_view body);

// Compares two strings without regard to case, as for the names of headers.
bool equals_ignoring_case(std::string_view a, std::string_view b);

// Returns the text of the first <tag> of an XML document, or an empty text.
std::string_view xml_text(std::string_view document, std::string_view tag);

}  // namespace streamer
