#include "http/secrets.h"

#include <doctest/doctest.h>

namespace streamer {
namespace {

const HttpTarget kTarget{
    .url =
        "https://bucket.example/key?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Expires=3600&"
        "X-Amz-Security-Token=IQoJb3JpZ2luX2VjEJr%2F%2F%2Fabcdefghij&"
        "X-Amz-Signature=0123456789abcdef0123456789abcdef&versionId=7",
    .headers = {"Authorization: Bearer ya29.abcdefghijklmnop", "X-Api-Key: hunter2",
                "Cookie: a=1; session=oatmeal", "User-Agent: streamer/1.0 (Linux)"},
    .ca_file = {},
    .proxy = "http://me:pr0xyword@proxy:3128"};

std::string masked(std::string text, const HttpTarget& target = kTarget) {
  ReadError error;
  error.detail = std::move(text);
  mask_secrets(error, target);
  return error.detail;
}

TEST_CASE("a secret of the request is masked wherever the server repeats it") {
  CHECK(masked("sig=0123456789abcdef0123456789abcdef.") == "sig=***.");
  CHECK(masked("token ya29.abcdefghijklmnop is wrong") == "token *** is wrong");
  CHECK(masked("key 'hunter2', cookie oatmeal; pr0xyword") == "key '***', cookie ***; ***");
}

TEST_CASE("a piece of a secret is masked too, and a secret that is percent-encoded once or twice") {
  CHECK(masked("it begins with ya29.abcdefghijk...") == "it begins with ***...");
  CHECK(masked("IQoJb3JpZ2luX2VjEJr///abcdefghij") == "***");
  CHECK(masked("IQoJb3JpZ2luX2VjEJr%2f%2f%2Fabcdefghij") == "***");
  CHECK(masked("x%20IQoJb3JpZ2luX2VjEJr%252F%252F%252Fabcdefghij y") == "x%20*** y");
}

TEST_CASE("the password of a basic login is masked, although its header is encoded") {
  const HttpTarget target{.url = "http://host/key",
                          .headers = {"authorization: Basic dXNlcjpTM2NyM3Q="},  // user:S3cr3t
                          .ca_file = {},
                          .proxy = {}};
  CHECK(masked("user:S3cr3t", target) == "user:***");
  CHECK(masked("dXNlcjpTM2NyM3Q=", target) == "***");
}

TEST_CASE("a login in the URL is masked too") {
  CHECK(masked("login me:s3cr3t",
               {.url = "http://me:s3cr3t@host/k", .headers = {}, .ca_file = {}, .proxy = {}}) ==
        "login me:***");
  CHECK(masked("login hf_token",
               {.url = "http://hf_token@host/k", .headers = {}, .ca_file = {}, .proxy = {}}) ==
        "login ***");
}

TEST_CASE("all other text stays unchanged") {
  for (const char* text :
       {"", "Please use AWS4-HMAC-SHA256.", "wait 3600 s", "100% of bucket.example/key, %zz and %4",
        "streamer/1.0 (Linux)", "hunter22 is another word", "caf\xe9"}) {
    CHECK(masked(text) == text);
  }
}

}  // namespace
}  // namespace streamer
