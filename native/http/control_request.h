// One request about objects: for a page of a listing, or for the size and version of one.
//
// It takes a connection that is kept (http/kept_connections.h) and gives it back, so that the data
// finds it open. It is sent once, and redirects are not followed. Whoever asks has another way to
// find out why there is no answer: here that is no error.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "http/object.h"

namespace streamer {

struct ControlRequest {
  HttpTarget target;
  bool is_head = false;          // without a body in the answer
  std::size_t most_bytes = 0;    // of the body
  bool may_be_cut = false;       // a longer body is cut there; otherwise it is no answer
  double connect_timeout_s = 0;  // with the TLS handshake
  double timeout_s = 0;          // until the last byte is there
};

struct ControlAnswer {
  int status = 0;
  std::vector<std::string> headers;  // "name: value", as they came
  std::string body;
};

// Nothing where no whole answer came within the times and the bytes, or is_interrupted() is true,
// which is asked ten times a second.
std::optional<ControlAnswer> ask(const ControlRequest& request,
                                 const std::function<bool()>& is_interrupted);

}  // namespace streamer
