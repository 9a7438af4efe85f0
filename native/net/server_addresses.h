// Looks up the addresses of a host with this machine's resolver.
//
// Guarantees: returns an answer or an error within `timeout_s`, or soon after an interrupt of the
// caller, however long the name servers are silent. A name that does not exist is an error at once.
// If no name server answers, or a name server fails, the lookup is retried by the rules of
// net/retry.h.
#pragma once

#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "base/read_error.h"
#include "net/retry.h"

namespace streamer {

struct NameLookupLimits {
  double timeout_s = 10;  // limit for all attempts together
  RetryOptions retry = {};
  std::function<bool()> is_interrupted = {};  // called ten times a second; may be empty
};

// Looks the host up on a detached thread, which calls `take_answer` with the addresses, or with an
// empty list if there are none. Does nothing if the system starts no thread.
void ask_for_addresses(const std::string& host,
                       std::function<void(const std::vector<std::string>&)> take_answer);

// Returns the addresses as text, in the resolver's order, at least one; otherwise an error.
std::variant<std::vector<std::string>, ReadError> addresses_of(const std::string& host,
                                                               const NameLookupLimits& limits);

}  // namespace streamer
