#include "runai/response_queue.h"

#include <utility>

#include "runai/codes.h"

namespace streamer::runai {

uint64_t ResponseQueue::add(std::vector<uint32_t> range_counts) {
  Submission submission;
  submission.is_answered.reserve(range_counts.size());
  for (const uint32_t count : range_counts) {
    submission.is_answered.emplace_back(count, false);
    submission.unanswered += count;
  }
  submission.untaken = submission.unanswered;
  const std::scoped_lock locked(mutex_);
  const uint64_t number = ++last_submission_;
  if (submission.unanswered > 0) submissions_.emplace(number, std::move(submission));
  return number;
}

void ResponseQueue::withdraw(uint64_t submission) {
  const std::scoped_lock locked(mutex_);
  submissions_.erase(submission);
}

void ResponseQueue::answer(uint64_t submission, uint32_t file, uint32_t range, int code) {
  const std::scoped_lock locked(mutex_);
  const auto found = submissions_.find(submission);
  if (is_stopped_ || found == submissions_.end()) return;
  if (file >= found->second.is_answered.size()) return;
  if (range >= found->second.is_answered[file].size()) return;
  push(found->second, {submission, file, range, code, false});
}

void ResponseQueue::answer_rest(uint64_t submission, int code) {
  const std::scoped_lock locked(mutex_);
  const auto found = submissions_.find(submission);
  if (is_stopped_ || found == submissions_.end()) return;
  const auto& files = found->second.is_answered;
  for (uint32_t file = 0; file < files.size(); ++file) {
    for (uint32_t range = 0; range < files[file].size(); ++range) {
      push(found->second, {submission, file, range, code, false});
    }
  }
}

int ResponseQueue::take(std::chrono::milliseconds timeout, Response& response) {
  std::unique_lock locked(mutex_);
  const auto is_over = [this] { return is_stopped_ || !ready_.empty(); };
  if (timeout.count() == 0) {
    changed_.wait(locked, is_over);
  } else if (!changed_.wait_for(locked, timeout, is_over)) {
    return kTimedOut;
  }
  if (is_stopped_) return kFinished;
  response = ready_.front();
  ready_.pop_front();
  const auto found = submissions_.find(response.submission);
  response.is_last = --found->second.untaken == 0;
  if (response.is_last) submissions_.erase(found);
  return kSuccess;
}

void ResponseQueue::stop() {
  {
    const std::scoped_lock locked(mutex_);
    is_stopped_ = true;
  }
  changed_.notify_all();
}

void ResponseQueue::push(Submission& submission, const Response& response) {
  if (submission.is_answered[response.file][response.range]) return;
  submission.is_answered[response.file][response.range] = true;
  --submission.unanswered;
  ready_.push_back(response);
  changed_.notify_one();
}

}  // namespace streamer::runai
