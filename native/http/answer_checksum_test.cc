#include "http/answer_checksum.h"

#include <doctest/doctest.h>

#include <span>
#include <string>

namespace streamer {
namespace {

std::uint64_t crc_of(Crc code, const std::string& text) {
  return compute(code, std::as_bytes(std::span(text)));
}

TEST_CASE("Azure's CRC64 is the one of NVMe, with the least significant byte first") {
  // A response of Azure for "Hello World" (from the recorded tests of the Azure SDK for
  // JavaScript).
  const AnswerChecksum azure{.order = AnswerChecksum::Order::kLeastSignificantFirst};
  CHECK(value_of(azure, "YeJLfssylmU=") == crc_of(Crc::kCrc64Nvme, "Hello World"));
}

TEST_CASE("stores write the most significant byte first") {
  CHECK(value_of({.code = Crc::kCrc32c}, "4waSgw==") == crc_of(Crc::kCrc32c, "123456789"));
}

TEST_CASE("a refusal of the checksum header is distinguished from other errors") {
  CHECK(means_unknown_header("UnsupportedHeader"));
  CHECK(means_unknown_header("FeatureNotSupported"));
  CHECK_FALSE(means_unknown_header("AuthenticationFailed"));
  CHECK_FALSE(means_unknown_header(""));
}

TEST_CASE("text that is not a checksum of the right size is rejected") {
  for (const char* text : {"", "YeJLfssylmU", "YeJLfssylmU==", "YeJLfssylmV=", "YeJL fssylmU=",
                           "4waSgw==", "YeJLfssy-mU=", "YeJLfssylmUA", "============"}) {
    CAPTURE(text);
    CHECK_FALSE(value_of({}, text));
  }
}

}  // namespace
}  // namespace streamer
