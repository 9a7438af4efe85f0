// Requests of one object behind a loopback server. The thread of the test drives them, as a reactor
// does.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "http/curl_multi.h"
#include "http/loopback_server.h"
#include "http/requests_in_flight.h"

namespace streamer {

class DrivenRequests {
 public:
  struct Ended {
    HttpTransfer* transfer = nullptr;  // null: nothing ended within the time-out
    std::optional<ReadError> error;
  };

  static constexpr unsigned kMaxInFlight = 4;

  DrivenRequests(const LoopbackServer& server, std::size_t size_bytes)
      : object_(target_of(server), size_bytes, "", "ETag", false), bytes_(size_bytes, '.') {}

  CurlMulti& multi() { return multi_; }
  RequestsInFlight& requests() { return requests_; }
  HttpObject& object() { return object_; }
  std::shared_ptr<Endpoint> endpoint() { return object_.target()->endpoint; }
  const std::string& bytes() const { return bytes_; }

  // Returns a block whose bytes go to their place in bytes().
  Block block(std::size_t begin, std::size_t end) {
    Block block;
    block.begin = begin;
    block.end = end;
    block.destinations = {{reinterpret_cast<std::byte*>(&bytes_[begin]), end - begin, 0}};
    return block;
  }

  // Sends a request that counts as sent at `started`.
  HttpTransfer& send(Block block, TimePoint started = Clock::now()) {
    const auto ticket = endpoint()->try_start(started, object_.id());
    return send(std::move(block), {.ticket = ticket.value(), .started = started});
  }
  HttpTransfer& send(Block block, Flight flight) {
    return requests_.send(std::move(block), object_, object_.target(), std::move(flight));
  }
  // Sends a duplicate of the request.
  HttpTransfer& duplicate(HttpTransfer& slow, TimePoint started = Clock::now()) {
    auto hedge = std::make_unique<Hedge>(slow.block());
    Block block = hedge->block(0);
    return send(std::move(block), {.ticket = endpoint()->try_start(started).value(),
                                   .started = started,
                                   .partner = &slow,
                                   .hedge = std::move(hedge)});
  }

  // Drives the requests until one has ended, which stays in flight.
  Ended next_ended() {
    Ended ended;
    drive_until([&] {
      const auto finished = multi_.next_finished();
      if (!finished) return false;
      for (HttpTransfer* transfer : requests_.transfers()) {
        if (transfer->handle() == finished->easy) ended.transfer = transfer;
      }
      ended.error = ended.transfer->conclude(finished->result, Clock::now());
      return true;
    });
    return ended;
  }

  // Returns false if that does not become true within ten seconds.
  bool drive_until(const std::function<bool()>& is_reached) {
    const TimePoint end = after(Clock::now(), 10);
    while (Clock::now() < end) {
      multi_.perform();
      if (is_reached()) return true;
      multi_.wait(5);
    }
    return false;
  }

 private:
  static HttpTarget target_of(const LoopbackServer& server) {
    HttpTarget target;
    target.url = server.url();
    return target;
  }

  HttpObject object_;
  std::string bytes_;
  CurlMulti multi_{new_multi(), 64};
  RequestsInFlight requests_{multi_, Timeouts{}, kMaxInFlight};
};

// A script: these faults for the first requests, and none for later ones.
inline LoopbackServer::Script first_faults(std::vector<LoopbackFault> faults) {
  return [faults = std::move(faults)](int number) {
    const auto index = static_cast<std::size_t>(number);
    return index < faults.size() ? faults[index] : LoopbackFault::kNone;
  };
}

// Records `count` requests that each took `seconds`, so that the endpoint knows when one is slow.
inline void record_requests(Endpoint& endpoint, int count, double seconds) {
  const TimePoint now = Clock::now();
  for (int i = 0; i < count; ++i) {
    endpoint.finish_well(endpoint.try_start(now).value(), seconds, true, now);
  }
}

// Opens an outage of the server, during which one request at a time is sent: a probe.
inline void open_outage(Endpoint& endpoint) {
  const TimePoint now = Clock::now();
  ReadError error = error_of(ErrorCode::kHttpStatus, "slow down");
  error.http_status = 503;
  for (int i = 0; i < 3; ++i) endpoint.finish_badly(endpoint.try_start(now).value(), error, now);
}

}  // namespace streamer
