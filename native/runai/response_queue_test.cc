#include "runai/response_queue.h"

#include <doctest/doctest.h>

#include <chrono>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "runai/codes.h"

namespace streamer::runai {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kForEver{0};
constexpr milliseconds kMoment{1};

int code_of_next(ResponseQueue& queue, Response& response) {
  return queue.take(kForEver, response);
}

TEST_CASE("each range gets one response, and the last one that is taken has is_last") {
  ResponseQueue queue;
  const uint64_t submission = queue.add({2, 0, 1});
  queue.answer(submission, 2, 0, kSuccess);
  queue.answer(submission, 0, 1, kEndOfFile);
  queue.answer(submission, 0, 1, kSuccess);  // a second answer, which is ignored
  queue.answer_rest(submission, kFileAccess);

  std::vector<int> codes;
  std::set<std::pair<uint32_t, uint32_t>> ranges;
  Response response;
  for (int count = 0; count < 3; ++count) {
    REQUIRE(code_of_next(queue, response) == kSuccess);
    CHECK(response.submission == submission);
    CHECK(response.is_last == (count == 2));
    codes.push_back(response.code);
    ranges.emplace(response.file, response.range);
  }
  CHECK(codes == std::vector<int>{kSuccess, kEndOfFile, kFileAccess});
  CHECK(ranges == std::set<std::pair<uint32_t, uint32_t>>{{0, 0}, {0, 1}, {2, 0}});
  CHECK(queue.take(kMoment, response) == kTimedOut);
}

TEST_CASE("an answer for an unknown range is ignored") {
  ResponseQueue queue;
  const uint64_t withdrawn = queue.add({1});
  queue.withdraw(withdrawn);
  const uint64_t submission = queue.add({1});
  queue.answer(withdrawn, 0, 0, kSuccess);
  queue.answer_rest(withdrawn, kSuccess);
  queue.answer(submission, 1, 0, kSuccess);
  queue.answer(submission, 0, 1, kSuccess);
  queue.answer(submission + 1, 0, 0, kSuccess);
  Response response;
  CHECK(queue.take(kMoment, response) == kTimedOut);
}

TEST_CASE("a submission without ranges gets a number and no response") {
  ResponseQueue queue;
  const uint64_t empty = queue.add({0, 0});
  CHECK(queue.add({}) > empty);
  Response response;
  CHECK(queue.take(kMoment, response) == kTimedOut);
}

TEST_CASE("submissions have different numbers, and end separately") {
  ResponseQueue queue;
  const uint64_t first = queue.add({1});
  const uint64_t second = queue.add({1});
  queue.answer(second, 0, 0, kSuccess);
  queue.answer(first, 0, 0, kSuccess);
  Response response;
  REQUIRE(code_of_next(queue, response) == kSuccess);
  CHECK(response.submission == second);
  CHECK(response.is_last);
  REQUIRE(code_of_next(queue, response) == kSuccess);
  CHECK(response.submission == first);
  CHECK(response.is_last);
}

TEST_CASE("a thread that waits for a response is woken by the end") {
  ResponseQueue queue;
  queue.add({1});
  std::vector<int> codes(2, kSuccess);
  std::vector<std::thread> waiting;
  for (int& code : codes) {
    waiting.emplace_back([&queue, &code] {
      Response response;
      code = queue.take(kForEver, response);
    });
  }
  queue.stop();
  for (std::thread& each : waiting) each.join();
  CHECK(codes == std::vector<int>{kFinished, kFinished});
}

TEST_CASE("several threads take the responses that another thread adds") {
  constexpr uint32_t kRanges = 2000;
  ResponseQueue queue;
  const uint64_t submission = queue.add({kRanges});
  std::vector<std::vector<uint32_t>> taken(3);
  std::vector<std::thread> takers;
  for (auto& own : taken) {
    takers.emplace_back([&queue, &own] {
      Response response;
      while (queue.take(kForEver, response) == kSuccess) {
        own.push_back(response.range);
        if (response.is_last) queue.stop();
      }
    });
  }
  for (uint32_t range = 0; range < kRanges; ++range) queue.answer(submission, 0, range, kSuccess);
  for (std::thread& each : takers) each.join();
  std::set<uint32_t> all;
  for (const auto& own : taken) all.insert(own.begin(), own.end());
  CHECK(all.size() == kRanges);
}

}  // namespace
}  // namespace streamer::runai
