// One thread with one CURLM, its own connections, and several ranged GETs in flight.
//
// The thread takes blocks from the HTTP lane whenever a transfer is free, and drives all transfers
// at once. Only wake() may be called from another thread. Python is never called: when an object's
// credentials need renewing, the consumer is asked through the scheduler and the block waits in the
// queue meanwhile. The Endpoint of a server, which all loads of the process share, decides how many
// requests the server gets, and whether it has an outage. Blocks of a paused server wait in the
// queue, and blocks of other servers go on.
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
  // `objects` is indexed by source. It holds null for sources that are not read over HTTP, and at
  // least one object. The reactor starts with kept connections to the server of the first object,
  // and keeps its own connections at the end.
  HttpReactor(Scheduler& scheduler, const std::vector<std::unique_ptr<HttpObject>>& objects,
              const Timeouts& timeouts, const RetryOptions& retry, HedgeBudget& hedge_budget,
              unsigned max_in_flight, HttpCounters& counters);
  ~HttpReactor();
  HttpReactor(const HttpReactor&) = delete;
  HttpReactor& operator=(const HttpReactor&) = delete;

  // Runs until the lane has no more work or everything is stopped. Called once, on the reactor's
  // thread.
  void run();

  // Makes run() check the queue again. May be called from any thread while this object exists.
  void wake() {
    const std::lock_guard lock(multi_mutex_);
    curl_multi_wakeup(multi_.get());
  }

 private:
  // A request under way.
  struct Flight {
    OutageTicket ticket{};
    TimePoint started{};
    HttpTransfer* partner = nullptr;         // its duplicate, or the request that it duplicates
    std::unique_ptr<Hedge> hedge = nullptr;  // the memory of a duplicate; null for other requests
    bool was_hedged = false;                 // one duplicate is enough
  };

  void drive();
  void use(MultiHandle multi);
  void close_idle_connections();
  void abandon_unserved_requests(TimePoint now);
  static bool waits_unserved(const HttpTransfer& transfer, const Flight& flight, TimePoint now);
  bool is_another_served(const HttpTransfer& transfer, const Flight& flight) const;
  void abandon_unserved(HttpTransfer& transfer, TimePoint now);
  void put_back(Block block, TimePoint due);
  void end_if_others_remain();
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
  const std::shared_ptr<Endpoint> server_;  // its connections are kept at the end
  std::mutex multi_mutex_;  // taken to replace multi_, and to use it on another thread
  MultiHandle multi_;
  std::vector<std::unique_ptr<HttpTransfer>> transfers_;
  std::vector<HttpTransfer*> idle_;
  std::unordered_map<HttpTransfer*, Flight> active_;
  InFlightWindow window_;
  HedgeBudget& hedge_budget_;          // shared by all reactors of the load
  std::uint64_t full_size_bytes_ = 0;  // of the largest block so far
  std::uint64_t received_bytes_ = 0;   // by all transfers, since the start
  std::uint64_t counted_bytes_ = 0;    // the part of them that is in counters_
  std::size_t connections_ = 0;        // open ones: most requests at a time, less closed ones
  std::optional<TimePoint> retry_at_;
  TimePoint next_deadline_check_{};
  bool is_lane_finished_ = false;
  bool is_ending_ = false;     // it has no connection; other reactors have some
  bool may_have_idle_ = true;  // there may be connections without a request
  bool is_reusable_ = false;   // run() ended normally, so the connections can be kept
};

}  // namespace streamer
