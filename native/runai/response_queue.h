// Which ranges of which submissions wait for a response, and the responses that nobody has taken
// yet.
//
// Guarantees: each range gets exactly one response, whatever the reader says twice or never asked
// for; the last response of a submission that is taken, and no other, says so. Thread-safe.
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

  // Forgets a submission that was not accepted.
  void withdraw(uint64_t submission);

  void answer(uint64_t submission, uint32_t file, uint32_t range, int code);

  // Gives the same code to every range without a response.
  void answer_rest(uint64_t submission, int code);

  // Waits for a response: kTimedOut after the time (0: none), kFinished once stopped.
  // Otherwise kSuccess, and `response` is set.
  int take(std::chrono::milliseconds timeout, Response& response);

  // From now on nothing is answered or taken; who waits is woken.
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
