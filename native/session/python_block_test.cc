// However a Python thread ends, the load is finished or failed, and its memory is freed.
#include "session/python_block.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "io/arena.h"

namespace streamer {
namespace {

constexpr std::uint64_t kItemBytes = 1000;
constexpr std::uint64_t kGapBytes = 40;

using Places = std::array<std::vector<std::byte>, 2>;

// Two items of one object, `gap` bytes apart. They are read as one block if the gap is small.
std::shared_ptr<Session> started(std::uint64_t gap = 0, const std::string& server = "test://server",
                                 Places* places = nullptr) {
  SessionOptions options;
  options.scheduler.block_bytes.fill(std::uint64_t{1} << 62);
  options.scheduler.memory_limit_bytes = 1 << 20;
  auto session = std::make_shared<Session>(std::move(options));
  session->add_python(server);
  const std::uint64_t second = kItemBytes + gap;
  Plan plan;
  plan.items = {{0, 0, kItemBytes}, {0, second, second + kItemBytes}};
  if (places != nullptr) {
    for (std::size_t i = 0; i < plan.items.size(); ++i) plan.items[i].target = (*places)[i].data();
  }
  plan.spans = {{0, 0, second + kItemBytes, 0, 2}};
  session->start(std::move(plan));
  return session;
}

std::size_t held_bytes() { return Arena::instance().stats().held_bytes; }

TEST_CASE("a block that is finished is delivered") {
  const auto session = started();
  PythonBlock::take(session)->finish();
  CHECK(session->wait(1).items.size() == 2);
  CHECK(PythonBlock::take(session) == nullptr);
}

TEST_CASE("a block that its thread drops fails the load (regression)") {
  const auto session = started();
  PythonBlock::take(session).reset();
  const Delivery delivery = session->wait(1);
  REQUIRE(delivery.error);
  CHECK(delivery.error->code == ErrorCode::kSource);
  CHECK(delivery.error->end == 2 * kItemBytes);
  CHECK(PythonBlock::take(session) == nullptr);
}

TEST_CASE("a block without memory for its buffer fails the load (regression)") {
  const auto session = started(std::uint64_t{1} << 60);
  const auto block = PythonBlock::take(session);
  REQUIRE(block);
  CHECK_FALSE(block->make_buffer());
  CHECK(session->wait(1).error.value().code == ErrorCode::kOutOfMemory);
}

TEST_CASE("a session whose Python source failed gives its memory back when closed (regression)") {
  const std::size_t before = held_bytes();
  const auto session = started();
  const auto block = PythonBlock::take(session);
  REQUIRE(block->make_buffer());
  block->fail("it failed", false);
  CHECK(block->data() == nullptr);
  session->close();
  CHECK(held_bytes() == before);
}

TEST_CASE("a kept buffer stays until the block is destroyed, and no longer") {
  const std::size_t before = held_bytes();
  const auto session = started();
  auto block = PythonBlock::take(session);
  REQUIRE(block->make_buffer());
  block->fail("it failed", true);
  session->close();
  CHECK(block->data() != nullptr);
  CHECK(held_bytes() == before + 2 * kItemBytes);
  block.reset();
  CHECK(held_bytes() == before);
}

TEST_CASE("bytes in memory are copied to the places of a block in any order, without a buffer") {
  Places places;
  for (auto& place : places) place.resize(kItemBytes);
  const auto session = started(kGapBytes, "test://server", &places);
  const auto block = PythonBlock::take(session);
  std::vector<std::byte> object(block->block().size());
  for (std::size_t i = 0; i < object.size(); ++i) object[i] = static_cast<std::byte>(i % 251);
  const std::span all(object);
  constexpr std::uint64_t kMiddle = 300;
  block->copy_in(kMiddle, all.subspan(kMiddle));
  block->copy_in(0, all.first(kMiddle));
  CHECK(block->data() == nullptr);
  CHECK_THROWS_AS(block->copy_in(1, all), std::invalid_argument);
  block->finish();
  CHECK(session->wait(1).items.size() == 2);
  CHECK(std::ranges::equal(places[0], all.first(kItemBytes)));
  CHECK(std::ranges::equal(places[1], all.last(kItemBytes)));
  CHECK_THROWS_AS(block->copy_in(0, all), std::invalid_argument);
}

TEST_CASE("a late reader keeps the memory of its session until it is finished") {
  const std::size_t before = held_bytes();
  const auto session = started();
  const auto block = PythonBlock::take(session);
  session->close();
  CHECK(held_bytes() == before + 2 * kItemBytes);
  block->finish();
  CHECK(held_bytes() == before);
}

TEST_CASE("a block is read again if its source reports a failure that may pass") {
  const auto session = started();
  PythonBlock::take(session)->try_again("busy", 0);
  const auto again = PythonBlock::take(session);
  REQUIRE(again);
  CHECK(again->block().attempts == 2);
  again->finish();
  CHECK(session->wait(1).items.size() == 2);
  CHECK(session->stats().scheduler.retries == 1);
}

TEST_CASE("a source that only reports failures that may pass ends the load") {
  const auto session = started(0, "test://silent");
  while (const auto block = PythonBlock::take(session)) block->try_again("busy", 0);
  const Delivery delivery = session->wait(1);
  REQUIRE(delivery.error);
  CHECK(delivery.error->attempts == 3);  // three, because it never answered
}

}  // namespace
}  // namespace streamer
