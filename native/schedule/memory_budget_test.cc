#include "schedule/memory_budget.h"

#include <doctest/doctest.h>

namespace streamer {
namespace {

TEST_CASE(
    "the budget limits the held bytes, with exceptions for the first item and a single item") {
  struct Case {
    const char* name;
    std::uint64_t held;
    std::uint64_t bytes;
    bool is_front;
    bool may;
  };
  for (const Case& each : {
           Case{"within the limit", 60, 40, false, true},
           Case{"a byte above it", 60, 41, false, false},
           Case{"the first item that is not taken", 60, 41, true, true},
           Case{"the only item, however large", 0, 1'000, false, true},
           Case{"an empty item at the limit", 100, 0, false, true},
           Case{"an empty item after one above the limit", 1'000, 0, false, false},
       }) {
    CAPTURE(each.name);
    MemoryBudget budget(100);
    budget.hold(each.held);
    CHECK(budget.may_hold(each.bytes, each.is_front) == each.may);
  }
}

TEST_CASE("the peak is the largest number of bytes held at a time") {
  MemoryBudget budget(100);
  budget.hold(70);
  budget.hand_over(70);
  budget.hold(50);
  CHECK(budget.held_bytes() == 50);
  CHECK(budget.peak_held_bytes() == 70);
  budget.hold_nothing();
  CHECK(budget.held_bytes() == 0);
  CHECK(budget.peak_held_bytes() == 70);
}

TEST_CASE("the budget knows whether memory that the system does not have may become free") {
  struct Case {
    const char* name;
    bool consumer_is_back;
    std::uint64_t held;
    bool is_awaited;
    bool may;
  };
  for (const Case& each : {
           Case{"the consumer may still free items that it took", false, 0, true, true},
           Case{"the consumer waits, and can get other held items", true, 10, false, true},
           Case{"the consumer waits for this very item", true, 10, true, false},
           Case{"the consumer waits, and nothing is held", true, 0, false, false},
       }) {
    CAPTURE(each.name);
    MemoryBudget budget(100);
    budget.hold(each.held);
    if (each.consumer_is_back) budget.note_consumer_back();
    CHECK(budget.may_come_back(each.is_awaited) == each.may);
  }
}

TEST_CASE("an item without memory is tried again once, when the consumer is back") {
  MemoryBudget budget(100);
  CHECK_FALSE(budget.note_consumer_back());
  budget.hold(10);
  budget.hand_over(10);
  CHECK(budget.may_come_back(true));
  CHECK(budget.note_consumer_back());
  CHECK_FALSE(budget.note_consumer_back());
  CHECK_FALSE(budget.may_come_back(true));  // not again: no memory will become free
  CHECK_FALSE(budget.note_consumer_back());
}

}  // namespace
}  // namespace streamer
