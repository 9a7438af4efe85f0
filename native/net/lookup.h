// A question of a storage's client to its server: how it takes part in the server's outages.
//
// Lookups and reads know the same of a server. While it is away, one request of them all is the
// probe, and the others wait for its answer. A lookup takes no room from the window of the reads:
// there are few lookups, and reads would always be quicker to take it.
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
  // `server`: a URL, or the name that its store gives it.
  Lookup(const std::string& server, const std::string& proxy);
  ~Lookup() { cancel(); }
  Lookup(const Lookup&) = delete;
  Lookup& operator=(const Lookup&) = delete;

  // While it is under way, other requests may lack the connection that it has.
  void begin() { under_way_.emplace(*server_->waiting); }
  void end();

  // Nothing once a request may be sent; else the seconds after which to try again.
  std::optional<double> try_start();
  // Whether its request is the probe of an outage.
  bool is_probe() const { return ticket_ && ticket_->is_probe; }
  // How long the request may wait for the first byte of its answer; infinite unless it is a probe.
  double first_byte_s() const;

  void finish_well();
  // It failed after so many requests. Seconds until it may be sent again, if that is not for the
  // outage to say; `random` is uniform in [0, 1).
  std::optional<double> finish_badly(ReadError error, int requests, double random);
  // Neither: nothing was learnt of the server.
  void cancel();
  // The server did answer something.
  void note_answer() { server_->note_answer(); }

  bool has_server_answered() const { return server_->has_answered(); }
  // The server answers other lookups, and fails for this one.
  bool fails_alone() const { return fails_alone_; }
  // Nothing where the server works, as far as is known.
  std::optional<OutageStory> outage() const { return server_->outage(); }

 private:
  const std::shared_ptr<Endpoint> server_;
  const std::uint64_t number_;  // stands for the object that is asked for
  std::optional<WaitingRequests::Foreign> under_way_;
  std::optional<OutageTicket> ticket_;
  int failures_ = 0;
  bool fails_alone_ = false;
};

}  // namespace streamer
