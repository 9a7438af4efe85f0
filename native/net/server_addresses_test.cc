#include "net/server_addresses.h"

#include <doctest/doctest.h>

namespace streamer {
namespace {

TEST_CASE("the lookup of an address returns this address, and a malformed address fails") {
  using Addresses = std::vector<std::string>;
  CHECK(std::get<Addresses>(addresses_of("127.0.0.1", {})) == Addresses{"127.0.0.1"});
  CHECK(std::get<Addresses>(addresses_of("::1", {})) == Addresses{"::1"});
  CHECK(std::holds_alternative<ReadError>(addresses_of("256.256.256.256.invalid", {})));
}

TEST_CASE("a lookup ends when the caller interrupts it, or its time is over") {
  const auto refused =
      addresses_of("256.256.256.256.invalid", {.is_interrupted = [] { return true; }});
  CHECK(std::get<ReadError>(refused).attempts == 1);
  const auto late = addresses_of("127.0.0.1", {.timeout_s = 0});
  REQUIRE(std::holds_alternative<ReadError>(late));
  CHECK(std::get<ReadError>(late).code == ErrorCode::kResolve);
}

}  // namespace
}  // namespace streamer
