#include "http/progress_watch.h"

#include <doctest/doctest.h>

namespace streamer {
namespace {

TEST_CASE("a request is late if its server made no progress since it was sent, for too long") {
  const ProgressWatch watch;
  const TimePoint sent = Clock::now();
  CHECK_FALSE(watch.is_late(sent, sent));
  CHECK_FALSE(watch.is_late(sent, after(sent, ProgressWatch::kPatienceS - 0.01)));
  CHECK(watch.is_late(sent, after(sent, ProgressWatch::kPatienceS + 0.01)));
}

TEST_CASE("a response, or a step of bytes, of any request counts for all requests of an object") {
  const TimePoint sent = after(Clock::now(), -100);
  for (const bool is_response : {false, true}) {
    ProgressWatch watch;
    CHECK(watch.is_late(sent, Clock::now()));
    if (is_response) {
      watch.note_response();
    } else {
      watch.note_bytes(ProgressWatch::kStepBytes);
    }
    CHECK_FALSE(watch.is_late(sent, Clock::now()));
    CHECK(watch.is_late(sent, after(Clock::now(), ProgressWatch::kPatienceS + 0.01)));
  }
}

TEST_CASE("drops are no progress until they are a step together, and a response begins a new one") {
  const TimePoint sent = after(Clock::now(), -100);
  ProgressWatch watch;
  for (std::uint64_t sum = 1000; sum < ProgressWatch::kStepBytes; sum += 1000) {
    watch.note_bytes(1000);
    REQUIRE(watch.is_late(sent, Clock::now()));
  }
  watch.note_bytes(1000);
  CHECK_FALSE(watch.is_late(sent, Clock::now()));

  ProgressWatch other;
  other.note_bytes(ProgressWatch::kStepBytes - 1);
  other.note_response();
  const TimePoint later = after(Clock::now(), ProgressWatch::kPatienceS + 0.01);
  other.note_bytes(1);
  CHECK(other.is_late(sent, after(later, ProgressWatch::kPatienceS)));
}

}  // namespace
}  // namespace streamer
