// The addresses of a host, asked of this machine's resolver.
//
// Guarantees: an answer, or an error, within `timeout_s`, or soon after the caller has had enough,
// however long the name servers are silent. A name that does not exist is an error at once; where
// no name server answers, or one fails, the question is asked again as net/retry.h has it.
#pragma once

#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "base/read_error.h"
#include "net/retry.h"

namespace streamer {

struct NamePatience {
  double timeout_s = 10;  // all questions together
  RetryOptions retry = {};
  std::function<bool()> is_interrupted = {};  // asked ten times a second; empty: never
};

// Asks on a thread of its own, which nobody waits for, and hands it the addresses: none where the
// resolver gives none, or the system no thread.
void ask_for_addresses(const std::string& host,
                       std::function<void(const std::vector<std::string>&)> take_answer);

// Never an empty list. The addresses are text, in the resolver's order.
std::variant<std::vector<std::string>, ReadError> addresses_of(const std::string& host,
                                                               const NamePatience& patience);

}  // namespace streamer
