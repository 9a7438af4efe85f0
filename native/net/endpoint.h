// What all loads of the process know of one server: how hard it may be pressed.
//
// How large a request should be, how long one usually takes, how many may be in flight after an
// outage, and whether there is an outage now. All requests to the server are announced here, so
// that its failure is one event for all threads and loads, and another server's business goes on.
// Each way to a server has an endpoint: that it answered directly says nothing of a proxy. An
// endpoint lives as long as an object of some load points at it; that it answered is remembered
// until the process ends.
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

// Of an answer, since it was asked for on a connection that was there.
struct AnswerTimes {
  double first_byte_s = 0;
  double complete_s = 0;
};

struct RequestAdvice {
  std::uint64_t bytes = 0;  // of one request
  // Even the quickest answer took long to begin: many requests should wait at the same time.
  bool is_distant = false;
  double first_byte_s = 0;  // how long the quickest answer took to begin; zero while unknown
};

class Endpoint {
 public:
  // The endpoint of a URL: the same for all URLs of one scheme, host and port, as long as the same
  // proxies lead there, this one or those of the environment.
  static std::shared_ptr<Endpoint> of(std::string_view url, const std::string& proxy = {});
  // The endpoint of that name, where a URL does not tell it.
  static std::shared_ptr<Endpoint> named(const std::string& name);

  // Whoever asks from here on knows nothing of any server.
  static void forget_all_for_tests();

  // `name` is for messages. `has_answered`: in this process, ever. `shared`: with other ways to it.
  explicit Endpoint(std::string name, bool has_answered = false, std::size_t route = 0,
                    std::shared_ptr<WaitingRequests> shared = nullptr)
      : addresses(std::make_shared<AddressBook>(name)),
        waiting(shared ? std::move(shared) : std::make_shared<WaitingRequests>()),
        name_(std::move(name)),
        route_(route),
        has_answered_(has_answered) {}

  const std::shared_ptr<AddressBook> addresses;  // of a URL's host
  // Of the requests that were answered, on a connection that had answered others: when the last was
  // sent.
  LatestTime answered_again;
  const std::shared_ptr<WaitingRequests> waiting;  // the server's, on whatever way

  const std::string& name() const { return name_; }

  // Nothing where a request may be sent now; else when to ask again.
  std::optional<TimePoint> closed_until(TimePoint now);
  // Takes room for one request, where there is some. Each must be finished, or cancelled.
  // `object`: HttpObject::id(), where requests for several objects can be told apart.
  std::optional<OutageTicket> try_start(TimePoint now, std::uint64_t object = 0);
  // The same for a lookup, which waits for no room, and may not keep the time of a probe
  // (lookup.h).
  std::optional<OutageTicket> try_start_lookup(TimePoint now, std::uint64_t object);

  // The request took so long; `is_full_size` if that can be compared with others.
  void finish_well(const OutageTicket& ticket, double seconds, bool is_full_size, TimePoint now);
  // It asked for so many bytes. Once it is finished well.
  void record_answer(std::uint64_t bytes, const AnswerTimes& times);
  // It failed. True when that belongs to an outage, and is no fault of this one request.
  bool finish_badly(const OutageTicket& ticket, const ReadError& error, TimePoint now);
  void cancel(const OutageTicket& ticket);
  // Whether such a failure is the object's own, as the server answers for others.
  bool is_fault_of(std::uint64_t object, const ReadError& error);

  // How long a request may take before it is slower than 95 in 100; nothing while unknown.
  std::optional<double> slow_after_s();
  // How to ask it, as far as is known.
  RequestAdvice advice();

  bool has_answered();
  // Its server answered something.
  void note_answer();
  // How many times more failures of one request than usual are chance, as many of all fail.
  double row_factor();
  // Nothing where the server works, as far as is known.
  std::optional<OutageStory> outage();
  OutageTotals totals(TimePoint now);

 private:
  static std::shared_ptr<Endpoint> on_route(const std::string& name, std::size_t route);
  std::optional<TimePoint> closed_until_locked(TimePoint now) const;
  OutageTicket start_locked(std::uint64_t object);
  void note_answer_locked();

  const std::string name_;
  const std::size_t route_;  // tells the ways to it apart
  std::mutex mutex_;
  bool has_answered_;                               // guarded by mutex_
  Outage outage_;                                   // guarded by mutex_
  RequestWindow window_;                            // guarded by mutex_
  LatencyRecord latency_;                           // guarded by mutex_
  RequestSize size_;                                // guarded by mutex_
  std::mt19937_64 random_{std::random_device{}()};  // guarded by mutex_
};

// "https://host:port" of a URL, without user, path and query; what is in front
// of the path.
std::string endpoint_key(std::string_view url);

}  // namespace streamer
