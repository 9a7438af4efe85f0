// Checks that a server's response is refused unless it is exactly the requested range.
//
// The input is the head of a response, a blank line, and the start of its body.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "http/range_response.h"

namespace {

using streamer::RangeRequest;
using streamer::ResponseHead;

const RangeRequest kPart{100, 200, 1000, "\"v1\"", "ETag"};
const RangeRequest kWhole{0, 1000, 1000, "", "ETag"};

void require(bool is_true) {
  if (!is_true) std::abort();
}

ResponseHead head_of(std::string_view& rest) {
  ResponseHead head("ETag");
  while (!rest.empty()) {
    const std::size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
    if (line.empty()) break;
    head.take_line(line);
  }
  return head;
}

// A second parser of Content-Range, which parses numbers with scanf. A server that does not report
// the total size sends an asterisk instead (RFC 9110, 14.4).
bool says(const std::string& content_range, const RangeRequest& request) {
  unsigned long long begin = 0;
  unsigned long long last = 0;
  int parsed = 0;
  char unit[6] = {};
  const int count =
      std::sscanf(content_range.c_str(), "%5s %llu-%llu/%n", unit, &begin, &last, &parsed);
  if (count != 3 || parsed == 0 || begin != request.begin || last + 1 != request.end) return false;
  const std::string total = content_range.substr(parsed);
  return total == "*" || std::strtoull(total.c_str(), nullptr, 10) == request.size;
}

void check(const RangeRequest& request, const ResponseHead& head, std::string_view body) {
  const auto error = check_range_response(request, head, body);
  if (error) {
    require(!error->detail.empty());
    return;
  }
  const bool is_whole = request.begin == 0 && request.end == request.size;
  const bool is_proven = head.content_length && says(head.content_range, request);
  require(head.status == 206 || (head.status == 200 && (is_whole || is_proven)));
  require(head.status != 206 || says(head.content_range, request));
  require(!head.content_length || *head.content_length == request.end - request.begin);
  require(request.version.empty() || head.version == request.version || head.version == "v1");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  const ResponseHead head = head_of(rest);
  check(kPart, head, rest);
  check(kWhole, head, rest);
  return 0;
}
