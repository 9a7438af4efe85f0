#include "schedule/delivery_queue.h"

#include <doctest/doctest.h>

#include <vector>

namespace streamer {
namespace {

using Items = std::vector<std::uint32_t>;

// Returns the items that are delivered after each completion.
std::vector<Items> deliveries(bool in_item_order, const Items& completed) {
  DeliveryQueue queue(completed.size(), in_item_order);
  std::vector<Items> all;
  for (const std::uint32_t item : completed) {
    queue.complete(item);
    const bool has_ready = queue.has_ready();
    CHECK(has_ready == !all.emplace_back(queue.deliver()).empty());
    CHECK_FALSE(queue.has_ready());
  }
  CHECK(queue.has_delivered_all());
  return all;
}

TEST_CASE("items are delivered as they are completed") {
  CHECK(deliveries(false, {2, 0, 1}) == std::vector<Items>{{2}, {0}, {1}});
}

TEST_CASE("in item order, an item waits for all items before it") {
  CHECK(deliveries(true, {2, 0, 1}) == std::vector<Items>{{}, {0}, {1, 2}});
  CHECK(deliveries(true, {0, 1, 2}) == std::vector<Items>{{0}, {1}, {2}});
  CHECK(deliveries(true, {2, 1, 0}) == std::vector<Items>{{}, {}, {0, 1, 2}});
}

TEST_CASE("an item is taken once, and not before it is delivered") {
  DeliveryQueue queue(2, false);
  CHECK_FALSE(queue.may_take(0));
  queue.complete(0);
  CHECK_FALSE(queue.may_take(0));
  CHECK(queue.deliver() == Items{0});
  CHECK(queue.may_take(0));
  queue.take(0);
  CHECK_FALSE(queue.may_take(0));
  CHECK_FALSE(queue.may_take(2));  // the item does not exist
  CHECK(queue.delivered() == 1);
  CHECK_FALSE(queue.has_delivered_all());
}

TEST_CASE("the front is the first item that is not taken") {
  DeliveryQueue queue(3, false);
  for (const std::uint32_t item : {0u, 1u, 2u}) queue.complete(item);
  queue.deliver();
  CHECK(queue.front() == 0);
  queue.take(1);
  CHECK(queue.front() == 0);
  queue.take(0);
  CHECK(queue.front() == 2);
  queue.take(2);
  CHECK(queue.front() == 3);
}

TEST_CASE("without items all are delivered") { CHECK(DeliveryQueue(0, true).has_delivered_all()); }

}  // namespace
}  // namespace streamer
