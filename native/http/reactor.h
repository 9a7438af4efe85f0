// One thread, one CURLM, its own connections, up to K ranged GETs in flight.
//
// The thread takes blocks from the HTTP lane whenever a transfer is free, and
// drives all transfers at once. Only wake() may be called from another thread.
// Python is never called: when an object's credentials need renewing, the
// consumer is asked through the scheduler and the block waits in the queue
// meanwhile. How hard a server may be pressed, and whether it has an outage, is
// decided by its Endpoint, which all loads of the process share: blocks of a
// server that is paused wait in the queue, those of others go on.
#pragma once

#include <curl/curl.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/reader_count.h"
#include "http/hedge.h"
#include "http/in_flight_window.h"
#include "http/kept_connections.h"
#include "http/object.h"
#include "http/transfer.h"
#include "net/endpoint.h"
#include "net/retry.h"
#include "schedule/block_retries.h"
#include "schedule/scheduler.h"

namespace streamer {

struct HttpCounters {
  std::atomic<std::uint64_t> requests{0};
  std::atomic<std::uint64_t> refreshes{0};
  std::atomic<std::uint64_t> hedges{0};
  std::atomic<std::uint64_t> received_bytes{0};
  ReaderCount reactors;
};

class HttpReactor {
 public:
  // `objects` is indexed by source and holds null for those that are not read over HTTP, but not
  // for all. The reactor uses connections that others kept of the first one's server, and keeps its
  // own.
  HttpReactor(Scheduler& scheduler, const std::vector<std::unique_ptr<HttpObject>>& objects,
              const Timeouts& timeouts, const RetryOptions& retry, HedgeBudget& hedge_budget,
              unsigned max_in_flight, HttpCounters& counters);
  ~HttpReactor();
  HttpReactor(const HttpReactor&) = delete;
  HttpReactor& operator=(const HttpReactor&) = delete;

  // Runs until the lane needs nothing more or everything is stopped. Called once, on the reactor's
  // thread.
  void run();

  // Makes run() look at the queue again. From any thread, as long as this object lives.
  void wake() {
    const std::lock_guard lock(multi_mutex_);
    curl_multi_wakeup(multi_.get());
  }

 private:
  // A request under way.
  struct Flight {
    OutageTicket ticket{};
    TimePoint started{};
    HttpTransfer* partner = nullptr;         // its duplicate, or the one it is a duplicate of
    std::unique_ptr<Hedge> hedge = nullptr;  // what a duplicate fills; null for the others
    bool was_hedged = false;                 // one duplicate is enough
  };

  void drive();
  void use(MultiHandle multi);
  void leave_idle_connections();
  void leave_unserved_connections(TimePoint now);
  static bool waits_unserved(const HttpTransfer& transfer, const Flight& flight, TimePoint now);
  bool is_another_served(const HttpTransfer& transfer, const Flight& flight) const;
  void leave_unserved(HttpTransfer& transfer, TimePoint now);
  void put_back(Block block, TimePoint due);
  void leave_if_others_remain();
  void start_blocks();
  void perform();
  void start(Block block, TimePoint now);
  void send(Block block, HttpObject& object, std::shared_ptr<const HttpTarget> target,
            Flight flight);
  void collect_finished();
  void enforce_deadlines();
  void hedge_slow_ones(TimePoint now);
  void hedge(HttpTransfer& slow, Flight& flight, TimePoint now);
  void settle(HttpTransfer& transfer, std::optional<ReadError> error);
  static void record_answer(const HttpTransfer& transfer, bool is_full_size, TimePoint now);
  void settle_duplicate(Flight duplicate, bool is_complete);
  Flight cancel(HttpTransfer& transfer);
  void try_again(HttpTransfer& transfer, ReadError error, bool is_of_outage);
  bool wait_for_descriptor(Block& block);
  void sleep();
  bool has_room() const { return active_.size() < window_.size(); }
  void ask_refresh(HttpObject& object, std::uint32_t source);
  Flight release(HttpTransfer& transfer, bool keeps_connection);
  int poll_timeout_ms() const;

  Scheduler& scheduler_;
  const std::vector<std::unique_ptr<HttpObject>>& objects_;
  const BlockRetries retries_;
  const double block_deadline_s_;
  HttpCounters& counters_;
  const std::shared_ptr<Endpoint> server_;  // whose connections are kept
  std::mutex multi_mutex_;  // taken to replace multi_, and to use it on another thread
  MultiHandle multi_;
  std::vector<std::unique_ptr<HttpTransfer>> transfers_;
  std::vector<HttpTransfer*> idle_;
  std::unordered_map<HttpTransfer*, Flight> active_;
  InFlightWindow window_;
  HedgeBudget& hedge_budget_;          // of all reactors of the load
  std::uint64_t full_size_bytes_ = 0;  // of the largest block so far
  std::uint64_t received_bytes_ = 0;   // by all transfers, since the start
  std::uint64_t counted_bytes_ = 0;    // of those, what the counters have
  std::size_t connections_ = 0;        // as many as were in use at a time, and were not closed
  std::optional<TimePoint> retry_at_;
  TimePoint next_deadline_check_{};
  bool is_lane_finished_ = false;
  bool is_leaving_ = false;    // no connection can be made; other reactors have some
  bool may_have_idle_ = true;  // connections that no request uses now
  bool is_reusable_ = false;   // the connections are worth keeping, and in order
};

}  // namespace streamer
