// What opens a door, and how it is kept out of text that a server wrote.
//
// A server may repeat what it was sent: a proxy's error page shows the URL with its signature, a
// debugging one all headers. Of such text, whatever a secret is recognized by is masked: any 16
// characters of a long one in a row, a short one as a word; also percent-encoded, once or more.
// A server that disguises what it was told is not stopped: it knows the secret anyway.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/read_error.h"
#include "http/object.h"

namespace streamer {

class Secrets {
 public:
  // What is shorter than four characters could not be told from other text, and is left out.
  void add(std::string_view secret);
  // Takes what is secret of a URL: the password, and all of the query but what says when, how and
  // which version.
  void add_of_url(std::string_view url);
  // Takes the value of a header "name: value", unless it is one that says nothing of who asks.
  void add_of_header(std::string_view line);

  // `text` with "***" in the place of every secret.
  std::string masked(const std::string& text) const;

 private:
  std::vector<std::string> secrets_;  // percent-decoded
};

// Masks in everything a server put into `error` the secrets of the request it answered.
void mask_secrets(ReadError& error, const HttpTarget& target);

}  // namespace streamer
