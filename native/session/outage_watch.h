// The servers of one load: which are waited for now, and what their outages cost since it began.
//
// Thread-safe once it is made.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "net/endpoint.h"

namespace streamer {

// A server that is waited for.
struct OpenOutage {
  std::string server;
  double waited_s = 0;
  std::uint64_t probes = 0;
  std::string last_failure;  // in one sentence
};

class OutageWatch {
 public:
  // `endpoints` by source; null where none is asked.
  explicit OutageWatch(const std::vector<std::shared_ptr<Endpoint>>& endpoints);

  // The number of each source's server, by source.
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
