// The state of one server that all loads of the process share: how many requests it can take, how
// large they should be, and whether the server works.
//
// The state has the size of a request, the usual time of a request, the number that may be in
// flight after an outage, and the current outage, if any. All requests to the server are announced
// here. So a failure of the server is one event for all threads and loads, and requests to other
// servers continue.
//
// Each route to a server, direct or through a proxy, has its own endpoint: a direct answer says
// nothing about a proxy. An endpoint lives as long as an object of a load refers to it. After that,
// the process only remembers whether the server answered.
//
// Thread-safe. A forked child starts with none of its parent's endpoints.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <string_view>

#include "net/address_book.h"
#include "net/latency_record.h"
#include "net/latest_time.h"
#include "net/outage.h"
#include "net/request_size.h"
#include "net/request_window.h"
#include "net/waiting_requests.h"

namespace streamer {

// Times of a response, measured from the moment its request was sent on an existing connection.
struct AnswerTimes {
  double first_byte_s = 0;
  double complete_s = 0;
};

struct RequestAdvice {
  std::uint64_t bytes = 0;  // size of one request
  // Even the quickest response started late, so many requests should be in flight.
  bool is_distant = false;
  double first_byte_s = 0;  // wait of the quickest response; 0 if unknown
};

class Endpoint {
 public:
  // Returns the endpoint of a URL. All URLs with the same scheme, host, port and proxy share one.
  // The proxy is `proxy`; if that is empty, it comes from the environment.
  static std::shared_ptr<Endpoint> of(std::string_view url, const std::string& proxy = {});
  // Returns the endpoint with this name, for servers that have no URL.
  static std::shared_ptr<Endpoint> named(const std::string& name);

  // Later calls get new endpoints without any history.
  static void forget_all_for_tests();

  // `name` is for messages. `has_answered`: the server has answered before in this process.
  // `shared`: the waiting requests that all routes to the server share.
  explicit Endpoint(std::string name, bool has_answered = false, std::size_t route = 0,
                    std::shared_ptr<WaitingRequests> shared = nullptr)
      : addresses(std::make_shared<AddressBook>(name)),
        waiting(shared ? std::move(shared) : std::make_shared<WaitingRequests>()),
        name_(std::move(name)),
        route_(route),
        has_answered_(has_answered) {}

  const std::shared_ptr<AddressBook> addresses;  // of the URL's host
  // When the last answered request was sent on a connection that had answered before.
  LatestTime answered_again;
  const std::shared_ptr<WaitingRequests> waiting;  // shared by all routes to the server

  const std::string& name() const { return name_; }

  // Returns nothing if a request may be sent now, else the time at which the caller should ask
  // again.
  std::optional<TimePoint> closed_until(TimePoint now);
  // Reserves room for one request, if there is room. Each ticket must be finished or cancelled.
  // `object`: HttpObject::id(), or 0 if requests for different objects cannot be distinguished.
  std::optional<OutageTicket> try_start(TimePoint now, std::uint64_t object = 0);
  // Does the same for a lookup. A lookup does not wait for room, and may miss the deadline of a
  // probe (lookup.h).
  std::optional<OutageTicket> try_start_lookup(TimePoint now, std::uint64_t object);

  // Records a success after `seconds`. `is_full_size`: this time can be compared with others.
  void finish_well(const OutageTicket& ticket, double seconds, bool is_full_size, TimePoint now);
  // Call after finish_well(). `bytes`: the size of the request.
  void record_answer(std::uint64_t bytes, const AnswerTimes& times);
  // Records a failure. Returns true if the failure belongs to an outage and is not the fault of
  // this request.
  bool finish_badly(const OutageTicket& ticket, const ReadError& error, TimePoint now);
  void cancel(const OutageTicket& ticket);
  // Whether the object itself causes this failure, because the server answers requests for others.
  bool is_fault_of(std::uint64_t object, const ReadError& error);

  // Returns the time after which a request is slower than 95 in 100; nothing if that is not known
  // yet.
  std::optional<double> slow_after_s();
  // Returns the best size and number of requests, as far as known.
  RequestAdvice advice();

  bool has_answered();
  // Records that the server answered, whatever the answer was.
  void note_answer();
  // Returns by which factor more failures of one request than usual can still be chance
  // (failure_share.h).
  double row_factor();
  // Returns the current outage; nothing if there is none, as far as known.
  std::optional<OutageRecord> outage();
  OutageTotals totals(TimePoint now);

 private:
  static std::shared_ptr<Endpoint> on_route(const std::string& name, std::size_t route);
  std::optional<TimePoint> closed_until_locked(TimePoint now) const;
  OutageTicket start_locked(std::uint64_t object);
  void note_answer_locked();

  const std::string name_;
  const std::size_t route_;  // distinguishes the routes to the server, see route_to()
  std::mutex mutex_;
  bool has_answered_;                               // guarded by mutex_
  Outage outage_;                                   // guarded by mutex_
  RequestWindow window_;                            // guarded by mutex_
  LatencyRecord latency_;                           // guarded by mutex_
  RequestSize size_;                                // guarded by mutex_
  std::mt19937_64 random_{std::random_device{}()};  // guarded by mutex_
};

// Returns "https://host:port" of a URL: everything before the path, without the user.
std::string endpoint_key(std::string_view url);

}  // namespace streamer
