// The ranges that wait for a response, and the responses that wait for a caller.
//
// Guarantees: each range gets exactly one response. A second answer, or an answer for an unknown
// range, is ignored. `is_last` is set only in the last response of a submission that a caller
// takes. Thread-safe.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

namespace streamer::runai {

struct Response {
  uint64_t submission = 0;
  uint32_t file = 0;
  uint32_t range = 0;  // index of the range in its file
  int code = 0;
  bool is_last = false;  // the last response of its submission
};

class ResponseQueue {
 public:
  // Returns the number of the submission. Numbers count from 1.
  uint64_t add(std::vector<uint32_t> range_counts);

  // Removes a submission that the reader did not accept.
  void withdraw(uint64_t submission);

  void answer(uint64_t submission, uint32_t file, uint32_t range, int code);

  // Gives this code to every range without a response.
  void answer_rest(uint64_t submission, int code);

  // Waits for a response. Returns kSuccess and sets `response`, kTimedOut after `timeout` (0: no
  // limit), or kFinished after stop().
  int take(std::chrono::milliseconds timeout, Response& response);

  // Wakes all waiting threads. After this call, no response is added or taken.
  void stop();

 private:
  struct Submission {
    std::vector<std::vector<bool>> is_answered;  // by file and range
    uint64_t unanswered = 0;
    uint64_t untaken = 0;
  };

  void push(Submission& submission, const Response& response);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::unordered_map<uint64_t, Submission> submissions_;  // guarded by mutex_, as all members below
  std::deque<Response> ready_;
  uint64_t last_submission_ = 0;
  bool is_stopped_ = false;
};

}  // namespace streamer::runai
