// A request of a storage's client that looks something up at its server, for example a listing.
// This class lets the request take part in the server's outages.
//
// Lookups and reads share the state of a server. During an outage, only one of all requests is the
// probe, and the others wait for its response. A lookup needs no room in the window of the reads:
// lookups are few, and reads would always take the room first.
//
// Used by one thread at a time.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "net/endpoint.h"

namespace streamer {

class Lookup {
 public:
  // `server`: a URL, or the name that its storage uses.
  Lookup(const std::string& server, const std::string& proxy);
  ~Lookup() { cancel(); }
  Lookup(const Lookup&) = delete;
  Lookup& operator=(const Lookup&) = delete;

  // From begin() to end() the lookup holds a connection that other requests may need.
  void begin() { under_way_.emplace(*server_->waiting); }
  void end();

  // Returns nothing if a request may be sent now, else the number of seconds until the next try.
  std::optional<double> try_start();
  // Whether the request of this lookup is the probe of an outage.
  bool is_probe() const { return ticket_ && ticket_->is_probe; }
  // Returns how long the request may wait for the first byte of its response: infinitely, unless it
  // is a probe.
  double first_byte_s() const;

  void finish_well();
  // Records that the lookup failed after `requests` requests. Returns the seconds until it may be
  // sent again; nothing if an outage decides when. `random` is uniform in [0, 1).
  std::optional<double> finish_badly(ReadError error, int requests, double random);
  // Records that the request ended without news about the server.
  void cancel();
  // Records that the server answered, whatever the answer was.
  void note_answer() { server_->note_answer(); }

  bool has_server_answered() const { return server_->has_answered(); }
  // Whether the server answers other lookups but fails for this one.
  bool fails_alone() const { return fails_alone_; }
  // Returns the current outage; nothing if there is none, as far as known.
  std::optional<OutageRecord> outage() const { return server_->outage(); }

 private:
  const std::shared_ptr<Endpoint> server_;
  const std::uint64_t number_;  // identifies the object that is looked up
  std::optional<WaitingRequests::Foreign> under_way_;
  std::optional<OutageTicket> ticket_;
  int failures_ = 0;
  bool fails_alone_ = false;
};

}  // namespace streamer
