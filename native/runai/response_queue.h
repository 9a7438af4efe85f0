// The ranges of submissions that wait for a response, and the responses that no caller has taken
// yet.
//
// Guarantees: each range gets exactly one response; second answers, and answers for unknown ranges,
// are ignored. Only the last response of a submission that is taken has `is_last` set. Thread-safe.
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
  uint32_t range = 0;  // of its file
  int code = 0;
  bool is_last = false;  // of its submission
};

class ResponseQueue {
 public:
  // Returns the submission's number, which counts from 1.
  uint64_t add(std::vector<uint32_t> range_counts);

  // Removes a submission that the reader did not accept.
  void withdraw(uint64_t submission);

  void answer(uint64_t submission, uint32_t file, uint32_t range, int code);

  // Gives the same code to every range without a response.
  void answer_rest(uint64_t submission, int code);

  // Waits for a response. Returns kSuccess and sets `response`, kTimedOut after `timeout` (0: no
  // limit), or kFinished once stopped.
  int take(std::chrono::milliseconds timeout, Response& response);

  // Wakes all waiting threads; from now on no response is added or taken.
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
  std::unordered_map<uint64_t, Submission> submissions_;  // guarded by mutex_, as all below
  std::deque<Response> ready_;
  uint64_t last_submission_ = 0;
  bool is_stopped_ = false;
};

}  // namespace streamer::runai
