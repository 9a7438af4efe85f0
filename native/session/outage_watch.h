// The servers of one load: for which of them it waits now, and the cost of their outages since it
// began.
//
// Thread-safe after its construction.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "net/endpoint.h"

namespace streamer {

// A server that the load waits for.
struct OpenOutage {
  std::string server;
  double waited_s = 0;
  std::uint64_t probes = 0;
  std::string last_failure;  // in one sentence
};

class OutageWatch {
 public:
  // `endpoints` is indexed by source, and null for a source without a server.
  explicit OutageWatch(const std::vector<std::shared_ptr<Endpoint>>& endpoints);

  // Returns the number of the server of each source, by source.
  const std::vector<std::uint32_t>& server_of_source() const { return server_of_source_; }

  std::vector<OpenOutage> open(TimePoint now) const;
  OutageTotals totals(TimePoint now) const;

 private:
  struct Server {
    std::shared_ptr<Endpoint> endpoint;
    OutageTotals before;
  };

  std::vector<Server> servers_;
  std::vector<std::uint32_t> server_of_source_;
};

}  // namespace streamer
