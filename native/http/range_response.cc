#include "http/range_response.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <utility>

#include "base/clock.h"

namespace streamer {
namespace {

constexpr std::size_t kLongestList = 4096;  // of a header; normal lists are a few words

std::string_view trim(std::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

std::optional<std::uint64_t> parse_number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string_view opaque_tag_of(std::string_view etag) {
  if (etag.starts_with("W/")) etag.remove_prefix(2);
  const bool is_quoted = etag.size() > 1 && etag.front() == '"' && etag.back() == '"';
  return is_quoted ? etag.substr(1, etag.size() - 2) : etag;
}

// Appends to the value of a list header, which may be spread over several lines.
void add_to_list(std::string& list, std::string_view value) {
  if (!list.empty()) list += ',';
  list += value.substr(0, kLongestList - std::min(kLongestList, list.size()));
}

// Whether `is_fine` is true for every element of a list header, without the white space around it.
template <typename Predicate>
bool all_of_list(std::string_view list, Predicate&& is_fine) {
  for (;;) {
    const std::size_t comma = list.find(',');
    if (!is_fine(trim(list.substr(0, comma)))) return false;
    if (comma == std::string_view::npos) return true;
    list.remove_prefix(comma + 1);
  }
}

// Some servers remove the framing of an upload ("aws-chunked") but keep its name as the encoding.
// A body that really has the framing differs in size from the object, or lacks this name.
bool is_plain(std::string_view content_encoding) {
  return all_of_list(content_encoding, [](std::string_view token) {
    return token.empty() || equals_ignoring_case(token, "identity") ||
           equals_ignoring_case(token, "aws-chunked");
  });
}

// Returns the total size, "1234" of "bytes 0-99/1234", if the range is the requested one.
std::optional<std::string_view> total_of(std::string_view content_range,
                                         const RangeRequest& request) {
  constexpr std::string_view kUnit = "bytes ";
  if (!equals_ignoring_case(content_range.substr(0, kUnit.size()), kUnit)) return std::nullopt;
  content_range.remove_prefix(kUnit.size());
  const std::size_t dash = content_range.find('-');
  const std::size_t slash = content_range.find('/');
  // If one of these characters is missing, or their order is wrong, a part is not a number.
  const std::string_view begin = content_range.substr(0, dash);
  const std::string_view last = content_range.substr(dash + 1, slash - dash - 1);
  const bool is_requested =
      parse_number(begin) == request.begin && parse_number(last) == request.end - 1;
  if (!is_requested || slash == std::string_view::npos) return std::nullopt;
  return content_range.substr(slash + 1);
}

// Some gateways send a range under status 200. Its length and the total must prove that it is one.
bool is_proven_range(const RangeRequest& request, const ResponseHead& head) {
  const auto total = total_of(head.content_range, request);
  return total && parse_number(*total) == request.size &&
         head.content_length == request.end - request.begin;
}

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

ErrorCode code_of_denial(int status, std::string_view storage_code, std::string_view message,
                         std::string_view detail) {
  // S3 reports an expired query signature as AccessDenied with "Request has expired". Azure reports
  // an expired SAS as AuthenticationFailed with this detail.
  if (message.find("expired") != std::string_view::npos ||
      detail.find("expired") != std::string_view::npos ||
      detail.find("not valid in the specified time frame") != std::string_view::npos ||
      is_one_of(storage_code, {"ExpiredToken", "RequestExpired", "TokenRefreshRequired"})) {
    return ErrorCode::kCredentialsExpired;
  }
  // S3 compares the time of a signature with its own clock; for a signed URL only the message says.
  if (storage_code == "RequestTimeTooSkewed" ||
      message.find("not valid yet") != std::string_view::npos ||
      message.find("not yet valid") != std::string_view::npos) {
    return ErrorCode::kClockSkew;
  }
  // RFC 9110: 401 is about authentication, 403 about permission.
  if (status == 401 ||
      is_one_of(storage_code, {"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken",
                               "AuthorizationHeaderMalformed", "AuthenticationFailed",
                               "InvalidAuthenticationInfo"})) {
    return ErrorCode::kCredentials;
  }
  return ErrorCode::kAccessDenied;
}

ErrorCode code_of_status(int status, std::string_view body) {
  const std::string_view storage_code = xml_text(body, "Code");
  if (status == 404) return ErrorCode::kNotFound;
  if (status == 412) return ErrorCode::kChanged;
  const bool is_of_token =
      is_one_of(storage_code, {"ExpiredToken", "InvalidToken", "TokenRefreshRequired"});
  if (status == 401 || status == 403 || (status == 400 && is_of_token)) {
    return code_of_denial(status, storage_code, xml_text(body, "Message"),
                          xml_text(body, "AuthenticationErrorDetail"));
  }
  if (status >= 300 && status < 400) return ErrorCode::kRedirect;
  if (status == 416) return ErrorCode::kTruncated;
  return ErrorCode::kHttpStatus;
}

ReadError error_of(ErrorCode code, std::string detail, const RangeRequest& request,
                   const ResponseHead& head) {
  ReadError error;
  error.code = code;
  error.detail = std::move(detail);
  error.begin = request.begin;
  error.end = request.end;
  error.http_status = head.status;
  error.request_id = head.request_id;
  error.retry_after_s = demanded_pause_s(head.status, head.pause, unix_time_s());
  return error;
}

std::string sentence_for(ErrorCode code, int status, std::string_view message) {
  std::string text;
  switch (code) {
    case ErrorCode::kNotFound:
      text = "the server does not know this object";
      break;
    case ErrorCode::kChanged:
      text = "the object was replaced while it was read";
      break;
    case ErrorCode::kCredentialsExpired:
      text = "the credentials or the signature expired";
      break;
    case ErrorCode::kClockSkew:
      text = "the server's clock differs from the time of the signature";
      break;
    case ErrorCode::kCredentials:
      text = "the server does not accept these credentials";
      break;
    case ErrorCode::kAccessDenied:
      text = "the server refuses to give this object";
      break;
    case ErrorCode::kRedirect:
      text = "the server redirects, which a signed request must not follow";
      break;
    case ErrorCode::kTruncated:
      text = "the object ends before this range";
      break;
    default:
      text = status == 429 ? "the server wants fewer requests" : "the server failed";
  }
  const std::string_view line = message.substr(0, message.find('\n'));  // Azure adds an id
  if (!line.empty()) text.append(": ").append(line.substr(0, 200));
  return text;
}

std::optional<ReadError> check_status(const RangeRequest& request, const ResponseHead& head,
                                      std::string_view body) {
  if (head.status == 206) return std::nullopt;
  const std::string_view storage_code = xml_text(body, "Code");
  const std::string_view message = xml_text(body, "Message");
  const bool is_error_document = head.status == 200 && !storage_code.empty();
  if (head.status >= 200 && head.status < 300 && !is_error_document) {
    const bool is_stored_so = is_plain(head.stored_encoding);
    const bool is_whole = request.begin == 0 && request.end == request.size;
    const bool is_range = is_whole || is_proven_range(request, head);
    if (head.status == 200 && is_range && is_stored_so) return std::nullopt;
    const char* detail = is_stored_so
                             ? "the server ignored the range and sent something else"
                             : "the object is stored compressed, and the server decompresses it";
    return error_of(ErrorCode::kRangeResponse, detail, request, head);
  }
  const ErrorCode code = code_of_status(head.status, body);
  ReadError error = error_of(code, sentence_for(code, head.status, message), request, head);
  error.storage_code = storage_code.substr(0, 100);
  return error;
}

// RFC 9110 allows a server to leave the total size open ("*"). Then a version must prove that the
// object is still the same: in the URL, or in the response, where it is compared with earlier ones.
std::optional<std::string> fault_of_range(const RangeRequest& request, const ResponseHead& head) {
  if (head.status != 206) return std::nullopt;
  const auto total = total_of(head.content_range, request);
  const bool has_version = request.version_header.empty() || !head.version.empty();
  if (total == "*" && has_version) return std::nullopt;
  if (total == "*") return "the server sends neither the total size nor a version";
  if (total && parse_number(*total) == request.size) return std::nullopt;
  return "the server sent another range";
}

}  // namespace

void ResponseHead::take_line(std::string_view line) {
  line = trim(line);
  if (line.substr(0, 5) == "HTTP/") {
    *this = ResponseHead(std::move(version_header), std::move(checksum_header));
    const std::size_t space = line.find(' ');
    if (space != std::string_view::npos) {
      status = static_cast<int>(parse_number(line.substr(space + 1, 3)).value_or(0));
    }
    return;
  }
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos) return;
  const std::string_view name = line.substr(0, colon);
  const std::string_view value = trim(line.substr(colon + 1));
  const auto is = [name](std::string_view wanted) { return equals_ignoring_case(name, wanted); };
  if (is("content-range")) content_range = value;
  if (is("content-length")) content_length = parse_number(value);
  if (is("content-encoding")) add_to_list(content_encoding, value);
  if (is("x-goog-stored-content-encoding")) add_to_list(stored_encoding, value);
  if (is("content-type")) content_type = value.substr(0, 128);
  if (!version_header.empty() && is(version_header)) version = value;
  if (!checksum_header.empty() && is(checksum_header)) checksum = value.substr(0, 128);
  if (is("x-amz-request-id") || is("x-ms-request-id") || is("x-guploader-uploadid") ||
      is("x-request-id")) {
    request_id = value.substr(0, 128);
  }
  if (is("retry-after")) pause.retry_after = value.substr(0, 128);
  if (is("date")) pause.date = value.substr(0, 128);
  if (is("ratelimit")) add_to_list(pause.rate_limit, value);
}

bool equals_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](unsigned char x, unsigned char y) {
    return std::tolower(x) == std::tolower(y);
  });
}

std::string_view xml_text(std::string_view document, std::string_view tag) {
  const std::string open = std::string("<").append(tag).append(">");
  const std::size_t start = document.find(open);
  if (start == std::string_view::npos) return {};
  const std::size_t end = document.find("</", start);
  if (end == std::string_view::npos) return {};
  return trim(document.substr(start + open.size(), end - start - open.size()));
}

bool is_same_version(std::string_view one, std::string_view other) {
  return opaque_tag_of(one) == opaque_tag_of(other);
}

bool may_be_error_document(const ResponseHead& head) {
  return head.status == 200 && head.content_type.find("xml") != std::string::npos;
}

std::optional<ReadError> check_range_response(const RangeRequest& request, const ResponseHead& head,
                                              std::string_view body) {
  if (auto error = check_status(request, head, body)) return error;
  const auto refuse = [&](ErrorCode code, std::string detail) {
    return error_of(code, std::move(detail), request, head);
  };
  if (!is_plain(head.content_encoding)) {
    return refuse(ErrorCode::kRangeResponse,
                  "the server encoded the range (" + head.content_encoding.substr(0, 40) + ")");
  }
  if (!request.version_header.empty() && !request.version.empty()) {
    if (head.version.empty()) {
      return refuse(ErrorCode::kRangeResponse, "the answer carries no " + request.version_header +
                                                   ", so its version cannot be checked");
    }
    if (!is_same_version(head.version, request.version)) {
      return refuse(ErrorCode::kChanged, "the object was replaced while it was read");
    }
  }
  if (auto wrong = fault_of_range(request, head)) {
    return refuse(ErrorCode::kRangeResponse,
                  *wrong + " (Content-Range: " + head.content_range.substr(0, 60) + ")");
  }
  if (head.content_length && *head.content_length != request.end - request.begin) {
    return refuse(ErrorCode::kRangeResponse,
                  "the server announces " + std::to_string(*head.content_length) + " bytes, not " +
                      std::to_string(request.end - request.begin));
  }
  return std::nullopt;
}

}  // namespace streamer
