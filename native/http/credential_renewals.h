// Decides before each request whether the credentials of its object may be used, and asks the
// consumer for new ones in time. All reactors of a load together ask once for each renewal.
//
// Belongs to the reactor's thread.
#pragma once

#include <cstdint>

#include "http/counters.h"
#include "http/object.h"
#include "schedule/scheduler.h"

namespace streamer {

class CredentialRenewals {
 public:
  enum class State : std::uint8_t {
    kUsable,
    kAwaited,  // they have expired, and the consumer was asked for new ones
    kInVain    // new ones had already expired, several times in a row: the load has failed
  };

  // Both must outlive this object.
  CredentialRenewals(Scheduler& scheduler, HttpCounters& counters)
      : scheduler_(scheduler), counters_(counters) {}

  State check(HttpObject& object, std::uint32_t source, double unix_now_s);

 private:
  Scheduler& scheduler_;
  HttpCounters& counters_;
};

}  // namespace streamer
