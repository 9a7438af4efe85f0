#include "net/request_size.h"

#include <doctest/doctest.h>

#include <functional>

namespace streamer {
namespace {

constexpr double kMiB = 1 << 20;

constexpr std::uint32_t kInFlight = 8;

// Records `count` responses to requests of the current size, each after `seconds_of(bytes)`.
void answer(RequestSize& size, int count, const std::function<double(double)>& seconds_of,
            std::uint32_t in_flight = kInFlight) {
  for (int i = 0; i < count; ++i) {
    size.record(size.bytes(), seconds_of(static_cast<double>(size.bytes())), in_flight);
  }
}

TEST_CASE("requests grow to the largest size if the server only waits, whatever the size") {
  RequestSize size;
  answer(size, 48, [](double) { return 0.014; });
  CHECK(size.bytes() == RequestSize::kMostBytes);
}

TEST_CASE("requests that queue at the server do not hide the gain of larger ones") {
  constexpr double kPerRequestS = 0.014;
  RequestSize size;
  // A growing number of requests is sent meanwhile.
  for (const std::uint32_t in_flight : {8, 16, 32}) {
    answer(size, 16, [in_flight](double) { return in_flight * kPerRequestS; }, in_flight);
  }
  CHECK(size.bytes() == RequestSize::kMostBytes);
}

TEST_CASE("with the 30 ms and 90 MB/s of S3, requests grow to the largest size") {
  RequestSize size;
  answer(size, 48, [](double bytes) { return 0.03 + bytes / 90e6; });
  CHECK(size.bytes() == RequestSize::kMostBytes);
}

TEST_CASE("the shortest wait for a first byte suggests the first size") {
  RequestSize size;
  CHECK(size.record_wait(0.05));
  CHECK(size.bytes() == RequestSize::kMostBytes);
  CHECK_FALSE(size.record_wait(0.09));
  CHECK(size.record_wait(0.014));  // the first answer was late
  CHECK(size.bytes() == 4 * RequestSize::kFirstBytes);
  CHECK(size.record_wait(0.0003));
  CHECK(size.bytes() == RequestSize::kFirstBytes);
}

TEST_CASE("after sizes were tried, a wait suggests no size") {
  RequestSize size;
  answer(size, 16, [](double bytes) { return bytes / 200e6; });
  const std::uint64_t tried = size.bytes();
  CHECK_FALSE(size.record_wait(0.03));
  CHECK(size.bytes() == tried);
}

TEST_CASE("an attempt goes as far as the last waits suggest") {
  RequestSize size;
  size.record_wait(0.001);  // a wait for other objects
  CHECK(size.bytes() == RequestSize::kFirstBytes);
  const auto answer_late = [&size](int count) {
    for (int i = 0; i < count; ++i) {
      size.record_wait(0.17);
      size.record(size.bytes(), 0.17, kInFlight, 0.17);
    }
  };
  answer_late(15);
  CHECK(size.bytes() == RequestSize::kFirstBytes);
  answer_late(1);
  CHECK(size.bytes() == RequestSize::kMostBytes);
  answer_late(100);
  CHECK(size.bytes() == RequestSize::kMostBytes);
}

TEST_CASE("if a request takes as long as its bytes, requests stay small") {
  RequestSize size;
  int small = 0;
  for (int i = 0; i < 2000; ++i) {
    small += size.bytes() == RequestSize::kFirstBytes;
    size.record(size.bytes(), static_cast<double>(size.bytes()) / 200e6, kInFlight);
  }
  CHECK(small > 1800);  // a larger size is tried now and then
}

TEST_CASE("one very slow answer does not change the size") {
  RequestSize size;
  answer(size, 16, [](double bytes) { return bytes / 200e6; });
  CHECK(size.bytes() == 2 * RequestSize::kFirstBytes);
  answer(size, 7, [](double) { return 20; });
  answer(size, 9, [](double bytes) { return bytes / 300e6; });
  CHECK(size.bytes() == 4 * RequestSize::kFirstBytes);
}

TEST_CASE("the size follows a change of the network") {
  RequestSize size;
  answer(size, 200, [](double bytes) { return bytes / 200e6; });
  answer(size, 2000, [](double bytes) { return 0.1 + bytes / (500 * kMiB); });
  CHECK(size.bytes() == RequestSize::kMostBytes);
}

TEST_CASE("answers to requests of another size are ignored") {
  RequestSize size;
  for (int i = 0; i < 100; ++i) CHECK_FALSE(size.record(12345, 1, kInFlight));
  CHECK(size.bytes() == RequestSize::kFirstBytes);
}

}  // namespace
}  // namespace streamer
