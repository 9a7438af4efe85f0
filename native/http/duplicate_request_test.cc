#include "http/duplicate_request.h"

#include <doctest/doctest.h>

#include <cstring>
#include <string>

namespace streamer {
namespace {

TEST_CASE("a duplicate gives exactly the bytes that are missing when it is complete") {
  std::string first(6, '.');
  std::string second(4, '.');
  Block slow;
  slow.source = 3;
  slow.begin = 100;
  slow.end = 113;
  slow.destinations = {{reinterpret_cast<std::byte*>(first.data()), 6, 0},
                       {nullptr, 3, Segment::kNoItem},
                       {reinterpret_cast<std::byte*>(second.data()), 4, 1}};
  slow.received = 2;
  std::memcpy(first.data(), "ab", 2);

  Hedge hedge(slow);
  Block duplicate = hedge.block(slow.source);
  CHECK(duplicate.source == 3);
  CHECK(duplicate.begin == 102);
  CHECK(duplicate.end == 113);
  std::memcpy(duplicate.destinations[0].target, "cdefGGGhijk", 11);

  slow.received = 4;  // the slow request received more meanwhile
  std::memcpy(first.data() + 2, "CD", 2);
  hedge.complete(slow);
  CHECK(slow.received == slow.size());
  CHECK(first == "abCDef");
  CHECK(second == "hijk");
}

TEST_CASE("a duplicate replaces the whole of a response whose checksum was not compared yet") {
  std::string text(8, '.');
  Block slow;
  slow.begin = 100;
  slow.end = 108;
  slow.destinations = {{reinterpret_cast<std::byte*>(text.data()), 8, 0}};
  slow.received = 2;
  std::memcpy(text.data(), "ab", 2);
  slow.answer = AnswerCheck{.begin = 102, .expected = 1, .received = 2};
  slow.received = 5;
  std::memcpy(text.data() + 2, "XXX", 3);

  Hedge hedge(slow);
  Block duplicate = hedge.block(slow.source);
  CHECK(duplicate.begin == 102);
  CHECK_FALSE(duplicate.answer);
  std::memcpy(duplicate.destinations[0].target, "cdefgh", 6);
  hedge.complete(slow);
  CHECK(text == "abcdefgh");
  CHECK(slow.received == slow.size());
  CHECK_FALSE(slow.answer);
}

TEST_CASE("the time of a duplicate counts from its own start") {
  Block slow;
  slow.end = 8;
  const TimePoint before = Clock::now();
  CHECK(Hedge(slow).block(0).first_started >= before);
}

TEST_CASE("duplicates cost at most their share of the requested bytes") {
  HedgeBudget budget(5);
  CHECK_FALSE(budget.try_spend(1));
  budget.record_request(1000);
  CHECK(budget.try_spend(30));
  CHECK(budget.try_spend(20));
  CHECK_FALSE(budget.try_spend(1));
  HedgeBudget off(0);
  off.record_request(1'000'000);
  CHECK_FALSE(off.try_spend(1));
}

}  // namespace
}  // namespace streamer
