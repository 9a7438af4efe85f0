// A lookup of a storage's client at its server (for example a listing): how it takes part in the
// server's outages.
//
// Lookups and reads share the state of a server. During an outage, one request of them all is the
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

  // Returns nothing if a request may be sent now, else the seconds until the next try.
  std::optional<double> try_start();
  // Whether its request is the probe of an outage.
  bool is_probe() const { return ticket_ && ticket_->is_probe; }
  // Returns how long the request may wait for the first byte of its response; infinite unless it is
  // a probe.
  double first_byte_s() const;

  void finish_well();
  // The lookup failed after `requests` requests. Returns the seconds until it may be sent again;
  // nothing if an outage decides that. `random` is uniform in [0, 1).
  std::optional<double> finish_badly(ReadError error, int requests, double random);
  // The request ended without news about the server.
  void cancel();
  // The server answered, whatever the answer was.
  void note_answer() { server_->note_answer(); }

  bool has_server_answered() const { return server_->has_answered(); }
  // Whether the server answers other lookups and fails for this one.
  bool fails_alone() const { return fails_alone_; }
  // Returns the current outage; nothing if the server works, as far as known.
  std::optional<OutageStory> outage() const { return server_->outage(); }

 private:
  const std::shared_ptr<Endpoint> server_;
  const std::uint64_t number_;  // stands for the object that is looked up
  std::optional<WaitingRequests::Foreign> under_way_;
  std::optional<OutageTicket> ticket_;
  int failures_ = 0;
  bool fails_alone_ = false;
};

}  // namespace streamer
