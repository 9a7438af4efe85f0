#include "net/name_lookup.h"

#include <doctest/doctest.h>
#include <netdb.h>

namespace streamer {
namespace {

TEST_CASE("a name that does not exist is a final error, and a failing name server is not") {
  CHECK(error_of_lookup(EAI_NONAME) == ErrorCode::kUnknownHost);
  for (const int code : {EAI_AGAIN, EAI_FAIL, EAI_SYSTEM, EAI_MEMORY, 0}) {
    CHECK(error_of_lookup(code) == ErrorCode::kResolve);
  }
}

TEST_CASE("the resolver is asked for the host of a URL") {
  CHECK(host_of("https://user:pw@Bucket.S3.test:8443/key?a=b") == "bucket.s3.test");
  CHECK(host_of("http://host/path:80") == "host");
  CHECK(host_of("http://[::1]:9000/x") == "::1");
  CHECK(host_of("host:1") == "host");
  CHECK(host_of("").empty());
}

TEST_CASE("an address needs no name server") { CHECK(look_up("127.0.0.1") == ErrorCode::kResolve); }

}  // namespace
}  // namespace streamer
