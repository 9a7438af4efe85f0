#include "net/endpoint.h"

#include <doctest/doctest.h>

namespace streamer {
namespace {

TEST_CASE("an endpoint is scheme, host and port, and nothing else of the URL") {
  CHECK(endpoint_key("https://Host:9000/bucket/key?X-Amz-Signature=abc") == "https://host:9000");
  CHECK(endpoint_key("http://user:secret@host/a@b") == "http://host");
  CHECK(endpoint_key("http://[::1]:80?x") == "http://[::1]:80");
  CHECK(endpoint_key("host/path") == "host");
}

TEST_CASE("loads of one server share it, and it is forgotten with the last of them") {
  const auto one = Endpoint::of("http://shared/a");
  CHECK(Endpoint::of("http://shared/b?c") == one);
  CHECK(Endpoint::of("http://shared:81/a") != one);
  for (int i = 0; i < 200; ++i)
    Endpoint::of("http://forgotten/a")->try_retry(FailureKind::kTransient);
  CHECK(Endpoint::of("http://forgotten/a")->try_retry(FailureKind::kTransient));
}

int count_retries(Endpoint& endpoint, FailureKind kind) {
  int count = 0;
  while (count < 1000 && endpoint.try_retry(kind)) ++count;
  return count;
}

TEST_CASE("a server that only fails is given up after 500 tokens") {
  Endpoint transient;
  CHECK(count_retries(transient, FailureKind::kTransient) == 35);
  Endpoint throttling;
  CHECK(count_retries(throttling, FailureKind::kThrottle) == 100);
}

TEST_CASE("successes earn retries back, up to the full budget") {
  Endpoint endpoint;
  count_retries(endpoint, FailureKind::kTransient);
  for (int i = 0; i < 14; ++i) {
    endpoint.try_start();
    endpoint.finish_well(0.1, true);
  }
  CHECK(count_retries(endpoint, FailureKind::kTransient) == 1);
  for (int i = 0; i < 5000; ++i) {
    endpoint.try_start();
    endpoint.finish_well(0.1, true);
  }
  CHECK(count_retries(endpoint, FailureKind::kTransient) == 35);
}

TEST_CASE("only requests of full size tell what is slow") {
  Endpoint endpoint;
  for (int i = 0; i < 100; ++i) {
    endpoint.try_start();
    endpoint.finish_well(9, false);
  }
  CHECK_FALSE(endpoint.slow_after_s());
  for (int i = 0; i < 20; ++i) {
    endpoint.try_start();
    endpoint.finish_well(0.1, true);
  }
  CHECK(endpoint.slow_after_s() == 0.1);
}

TEST_CASE("new credentials cost nothing") {
  Endpoint endpoint;
  CHECK(count_retries(endpoint, FailureKind::kStale) == 1000);
}

TEST_CASE("a throttled endpoint gives room only as its window allows") {
  Endpoint endpoint;
  const auto first = endpoint.try_start();
  endpoint.try_start();
  endpoint.finish(*first, FailureKind::kThrottle);
  CHECK_FALSE(endpoint.try_start());
  endpoint.finish_cancelled();
  CHECK(endpoint.try_start());
}

}  // namespace
}  // namespace streamer
