#include "http/range_response.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace streamer {
namespace {

const RangeRequest kRequest{.begin = 100, .end = 200, .size = 1000, .version = "\"v1\""};

ResponseHead head_of(const std::vector<std::string>& lines) {
  ResponseHead head;
  for (const std::string& line : lines) head.take_line(line + "\r\n");
  return head;
}

ResponseHead good_head() {
  return head_of({"HTTP/1.1 206 Partial Content", "Content-Range: bytes 100-199/1000",
                  "Content-Length: 100", "ETag: \"v1\"", "x-amz-request-id: R1"});
}

std::optional<ErrorCode> code_of(const ResponseHead& head, std::string_view body = {},
                                 const RangeRequest& request = kRequest) {
  const auto error = check_range_response(request, head, body);
  return error ? std::optional(error->code) : std::nullopt;
}

TEST_CASE("exactly the requested range is accepted") {
  CHECK_FALSE(code_of(good_head()));
  ResponseHead chunked = good_head();
  chunked.content_length.reset();
  CHECK_FALSE(code_of(chunked));
  ResponseHead unquoted = good_head();
  unquoted.version = "v1";
  CHECK_FALSE(code_of(unquoted));
}

TEST_CASE("any other Content-Range is refused") {
  for (const char* value :
       {"bytes 100-198/1000", "bytes 101-199/1000", "bytes 100-199/1001", "bytes 101-200/*",
        "bytes */1000", "bytes 0-99/1000", "100-199/1000", "bytes 100-199", "",
        "bytes -100-199/1000", "bytes 100-199/1000x", "bytes 99999999999999999999-1/2"}) {
    ResponseHead head = good_head();
    head.content_range = value;
    CHECK_MESSAGE(code_of(head) == ErrorCode::kRangeResponse, value);
  }
}

TEST_CASE("a response without a total size is accepted if there is a version") {
  ResponseHead open = good_head();
  open.content_range = "bytes 100-199/*";
  CHECK_FALSE(code_of(open));
  RangeRequest pinned_by_answer = kRequest;
  pinned_by_answer.version.clear();
  CHECK_FALSE(code_of(open, {}, pinned_by_answer));
  RangeRequest pinned_by_url = kRequest;
  pinned_by_url.version_header.clear();
  open.version.clear();
  CHECK_FALSE(code_of(open, {}, pinned_by_url));
  const auto error = check_range_response(pinned_by_answer, open, {});
  REQUIRE(error);
  CHECK(error->code == ErrorCode::kRangeResponse);
  CHECK(error->detail.find("sends neither the total size nor a version") != std::string::npos);
  CHECK(error->detail.find("another range") == std::string::npos);
}

TEST_CASE("the name of an upload's framing does not count as an encoding, but others do") {
  for (const char* value :
       {"aws-chunked", "AWS-Chunked", "aws-chunked,", "identity, aws-chunked"}) {
    ResponseHead head = good_head();
    head.content_encoding = value;
    CHECK_MESSAGE(!code_of(head), value);
  }
  CHECK(head_of({"HTTP/1.1 206 Partial Content", "Content-Encoding: gzip",
                 "Content-Encoding: aws-chunked"})
            .content_encoding == "gzip,aws-chunked");
  for (const char* value : {"gzip", "aws-chunked,gzip", "gzip, aws-chunked", "aws-chunked2"}) {
    ResponseHead head = good_head();
    head.content_encoding = value;
    CHECK_MESSAGE(code_of(head) == ErrorCode::kRangeResponse, value);
  }
}

TEST_CASE("another length, an encoding or a missing ETag is refused") {
  ResponseHead shorter = good_head();
  shorter.content_length = 99;
  CHECK(code_of(shorter) == ErrorCode::kRangeResponse);
  ResponseHead zipped = good_head();
  zipped.content_encoding = "gzip";
  CHECK(code_of(zipped) == ErrorCode::kRangeResponse);
  ResponseHead anonymous = good_head();
  anonymous.version.clear();
  CHECK(code_of(anonymous) == ErrorCode::kRangeResponse);
}

TEST_CASE("another ETag, or status 412, means that the object was replaced") {
  ResponseHead other = good_head();
  other.version = "\"v2\"";
  CHECK(code_of(other) == ErrorCode::kChanged);
  CHECK(code_of(head_of({"HTTP/1.1 412 Precondition Failed"})) == ErrorCode::kChanged);
}

TEST_CASE("a weak ETag that becomes strong is the same version") {
  ResponseHead weak = good_head();
  weak.version = "W/\"v1\"";
  CHECK_FALSE(code_of(weak));
  CHECK(is_same_version("\"v1\"", "W/\"v1\""));
  CHECK(is_same_version("W/v1", "\"v1\""));
  CHECK_FALSE(is_same_version("W/\"v1\"", "W/\"v2\""));
}

TEST_CASE("200 without a range is accepted only for a request of the whole object") {
  const ResponseHead whole = head_of({"HTTP/1.1 200 OK", "Content-Length: 1000", "ETag: \"v1\""});
  CHECK(code_of(whole) == ErrorCode::kRangeResponse);
  CHECK_FALSE(code_of(whole, {}, {.begin = 0, .end = 1000, .size = 1000, .version = "\"v1\""}));
  const ResponseHead page = head_of({"HTTP/1.1 200 OK", "Content-Length: 512", "ETag: \"v1\""});
  CHECK(code_of(page, {}, {.begin = 0, .end = 1000, .size = 1000, .version = "\"v1\""}) ==
        ErrorCode::kRangeResponse);
}

TEST_CASE("200 is accepted for a part whose length and Content-Range prove it") {
  const auto code = [](std::string range, std::string length) {
    return code_of(
        head_of({"HTTP/1.1 200 OK", "ETag: \"v1\"", std::move(range), std::move(length)}));
  };
  CHECK_FALSE(code("Content-Range: bytes 100-199/1000", "Content-Length: 100"));
  for (const char* range : {"bytes 100-199/*", "bytes 0-99/1000", "bytes 100-199/1001", "100-199"})
    CHECK(code(std::string("Content-Range: ") + range, "Content-Length: 100") ==
          ErrorCode::kRangeResponse);
  for (const char* length : {"Content-Length: 1000", "Content-Length: 99", "X-Length: 100"})
    CHECK(code("Content-Range: bytes 100-199/1000", length) == ErrorCode::kRangeResponse);
  const ResponseHead other = head_of({"HTTP/1.1 200 OK", "ETag: \"v2\"", "Content-Length: 100",
                                      "Content-Range: bytes 100-199/1000"});
  CHECK(code_of(other) == ErrorCode::kChanged);
}

TEST_CASE("each status has its meaning") {
  const auto status = [](int number, std::string_view body = {}) {
    return code_of(head_of({"HTTP/1.1 " + std::to_string(number) + " x"}), body);
  };
  CHECK(status(404) == ErrorCode::kNotFound);
  CHECK(status(403) == ErrorCode::kAccessDenied);
  CHECK(status(401) == ErrorCode::kCredentials);
  CHECK(status(416) == ErrorCode::kTruncated);
  CHECK(status(500) == ErrorCode::kHttpStatus);
  CHECK(status(503) == ErrorCode::kHttpStatus);
  for (const int redirect : {301, 302, 303, 307, 308})
    CHECK(status(redirect) == ErrorCode::kRedirect);
  const auto error = [](const char* code) {
    return "<Error><Code>" + std::string(code) + "</Code></Error>";
  };
  CHECK(status(403, error("SignatureDoesNotMatch")) == ErrorCode::kCredentials);
  CHECK(status(403, error("InvalidAccessKeyId")) == ErrorCode::kCredentials);
  CHECK(status(403, error("RequestTimeTooSkewed")) == ErrorCode::kClockSkew);
  CHECK(status(403,
               "<Error><Code>AccessDenied</Code><Message>Request is not valid "
               "yet</Message></Error>") == ErrorCode::kClockSkew);
  CHECK(status(403, error("ExpiredToken")) == ErrorCode::kCredentialsExpired);
  CHECK(status(400, error("ExpiredToken")) == ErrorCode::kCredentialsExpired);
  CHECK(status(400, error("InvalidToken")) == ErrorCode::kCredentials);
  CHECK(status(403,
               "<Error><Code>AccessDenied</Code><Message>Request has "
               "expired</Message></Error>") == ErrorCode::kCredentialsExpired);
}

TEST_CASE("an error carries status, code, request id and range") {
  ResponseHead head = head_of({"HTTP/1.1 404 Not Found", "x-amz-request-id: R9", "Retry-After: 3"});
  const auto error =
      check_range_response(kRequest, head, "<?xml?><Error><Code>NoSuchKey</Code></Error>");
  REQUIRE(error);
  CHECK(error->http_status == 404);
  CHECK(error->storage_code == "NoSuchKey");
  CHECK(error->request_id == "R9");
  CHECK(error->begin == 100);
  CHECK(error->end == 200);
  CHECK(error->retry_after_s == 3.0);
}

TEST_CASE("a new status line starts over, and names of headers ignore case") {
  const ResponseHead head =
      head_of({"HTTP/1.1 100 Continue", "ETag: \"old\"", "HTTP/1.1 206 Partial Content",
               "eTAG:  \"v1\"  ", "CONTENT-RANGE:bytes 100-199/1000"});
  CHECK(head.status == 206);
  CHECK_FALSE(code_of(head));
}

TEST_CASE("malformed headers never count as a response") {
  for (const char* line : {"HTTP/1.1", "HTTP/1.1 ", "HTTP/1.1 abc", "garbage", ":", ""}) {
    CHECK(code_of(head_of({line})).has_value());
  }
}

TEST_CASE("an error document under status 200 becomes the error that it describes") {
  const RangeRequest request{0, 100, 1000, "", "ETag"};
  ResponseHead head("ETag");
  for (const std::string_view line :
       {"HTTP/1.1 200 OK", "Content-Type: application/xml", "Content-Length: 70"}) {
    head.take_line(line);
  }
  CHECK(may_be_error_document(head));
  const auto error = check_range_response(request, head,
                                          "<Error><Code>SlowDown</Code><Message>Reduce your "
                                          "rate</Message></Error>");
  REQUIRE(error);
  CHECK(error->code == ErrorCode::kHttpStatus);
  CHECK(error->storage_code == "SlowDown");
  CHECK(error->detail.find("Reduce your rate") != std::string::npos);
}

}  // namespace
}  // namespace streamer
