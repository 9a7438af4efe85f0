// The requests of one reactor that are under way, the transfers that wait for the next request, and
// the number of connections that are open.
//
// Each request holds a ticket of its server's Endpoint. A request is in flight until release(),
// after which the caller reports the ticket, or until cancel(), which cancels the ticket. A slow
// request and its duplicate refer to each other while both are in flight.
//
// Belongs to the reactor's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "http/curl_multi.h"
#include "http/duplicate_request.h"
#include "http/object.h"
#include "http/transfer.h"
#include "net/endpoint.h"
#include "net/timeouts.h"

namespace streamer {

// A request under way.
struct Flight {
  OutageTicket ticket{};
  TimePoint started{};
  HttpTransfer* partner = nullptr;         // its duplicate, or the request that it duplicates
  std::unique_ptr<Hedge> hedge = nullptr;  // the memory of a duplicate; null for other requests
  bool was_hedged = false;                 // one duplicate is enough

  bool is_duplicate() const { return hedge != nullptr; }
  bool has_duplicate() const { return partner != nullptr && !is_duplicate(); }
};

class RequestsInFlight {
 public:
  // At most `max_in_flight` requests are in flight. `multi` and `trace` must outlive this object.
  RequestsInFlight(CurlMulti& multi, const Timeouts& timeouts, unsigned max_in_flight,
                   TraceLog* trace = nullptr);
  // Cancels all requests.
  ~RequestsInFlight() { cancel_all(); }
  RequestsInFlight(const RequestsInFlight&) = delete;
  RequestsInFlight& operator=(const RequestsInFlight&) = delete;

  std::size_t size() const { return flights_.size(); }
  bool has_idle_transfer() const { return !idle_.empty(); }
  const std::unordered_map<HttpTransfer*, Flight>& flights() const { return flights_; }
  Flight& flight_of(HttpTransfer& transfer) { return flights_.at(&transfer); }
  // Returns all transfers in flight, for a loop that ends some of them.
  std::vector<HttpTransfer*> transfers() const;
  bool has(HttpTransfer& transfer) const { return flights_.contains(&transfer); }

  // Sends a request for the missing bytes of the block. has_idle_transfer() must be true.
  HttpTransfer& send(Block block, HttpObject& object, std::shared_ptr<const HttpTarget> target,
                     Flight flight);
  // Ends a request. The transfer still has its block and its response, until the next send().
  // `keeps_connection`: its connection stays open. `error`: what the trace says, or null.
  Flight release(HttpTransfer& transfer, bool keeps_connection, const ReadError* error = nullptr);
  // Ends a request before its response is complete, which closes its connection.
  Flight cancel(HttpTransfer& transfer);
  void cancel_all();

  // Bytes that all transfers received so far.
  std::uint64_t received_bytes() const { return received_bytes_; }

  // Open connections of the requests so far: most requests at a time, less closed connections.
  std::size_t connections() const { return connections_; }
  bool has_idle_connection() const { return connections_ > flights_.size(); }
  // Whether there may be open connections, also kept ones of an earlier load, and no request.
  bool are_all_connections_idle() const { return may_have_idle_ && flights_.empty(); }
  // Closes all connections. No request may be in flight.
  void close_connections();

 private:
  CurlMulti& multi_;
  TraceLog* const trace_;
  std::uint64_t received_bytes_ = 0;
  std::vector<std::unique_ptr<HttpTransfer>> transfers_;
  std::vector<HttpTransfer*> idle_;
  std::unordered_map<HttpTransfer*, Flight> flights_;
  std::size_t connections_ = 0;
  bool may_have_idle_ = true;
};

}  // namespace streamer
