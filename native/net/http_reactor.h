// One thread, one CURLM, its own connections, up to K ranged GETs in flight.
//
// The thread takes blocks from the HTTP lane whenever a transfer is free, and drives all transfers
// at once. Only wake() may be called from another thread. Python is never called: when an object's
// credentials need renewing, the consumer is asked through the scheduler and the block waits in the
// queue meanwhile.
#pragma once

#include <curl/curl.h>

#include <atomic>
#include <memory>
#include <random>
#include <unordered_set>
#include <vector>

#include "net/http_object.h"
#include "net/http_transfer.h"
#include "net/in_flight_window.h"
#include "net/retry.h"
#include "pipeline/scheduler.h"

namespace streamer {

struct HttpCounters {
  std::atomic<std::uint64_t> requests{0};
  std::atomic<std::uint64_t> refreshes{0};
};

class HttpReactor {
 public:
  // `objects` is indexed by source and holds null for those that are not read over HTTP.
  HttpReactor(Scheduler& scheduler, const std::vector<std::unique_ptr<HttpObject>>& objects,
              const HttpOptions& http, const RetryOptions& retry, unsigned max_in_flight,
              HttpCounters& counters);
  ~HttpReactor();
  HttpReactor(const HttpReactor&) = delete;
  HttpReactor& operator=(const HttpReactor&) = delete;

  // Runs until the lane needs nothing more or everything is stopped. Called once, on the reactor's
  // thread.
  void run();

  // Makes run() look at the queue again. From any thread, as long as this object lives.
  void wake() { curl_multi_wakeup(multi_.get()); }

 private:
  struct FreeMulti {
    void operator()(CURLM* multi) const { curl_multi_cleanup(multi); }
  };

  void start_blocks();
  void start(Block block, TimePoint now);
  void collect_finished();
  void enforce_deadlines();
  void settle(HttpTransfer& transfer, std::optional<ReadError> error);
  bool renew_and_retry(HttpTransfer& transfer, const ReadError& error);
  void sleep();
  bool has_room() const { return active_.size() < window_.size(); }
  void ask_refresh(HttpObject& object, std::uint32_t source);
  void release(HttpTransfer& transfer);
  int poll_timeout_ms() const;

  Scheduler& scheduler_;
  const std::vector<std::unique_ptr<HttpObject>>& objects_;
  const RetryOptions retry_;
  HttpCounters& counters_;
  std::unique_ptr<CURLM, FreeMulti> multi_;
  std::vector<std::unique_ptr<HttpTransfer>> transfers_;
  std::vector<HttpTransfer*> idle_;
  std::unordered_set<HttpTransfer*> active_;
  InFlightWindow window_;
  std::uint64_t received_bytes_ = 0;  // by all transfers, since the start
  std::mt19937_64 random_{std::random_device{}()};
  std::optional<TimePoint> retry_at_;
  TimePoint next_deadline_check_{};
  bool is_lane_finished_ = false;
};

}  // namespace streamer
