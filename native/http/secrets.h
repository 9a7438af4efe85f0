// Masks the secrets of a request in text that a server wrote.
//
// A server may repeat parts of a request: the error page of a proxy shows the URL with its
// signature, and a debugging page shows all headers. Any 16 consecutive characters of a long secret
// are masked. A short secret is masked if it is a whole word. This also holds for percent-encoded
// secrets, even if encoded several times. A server that disguises a secret is not stopped, because
// it knows the secret anyway.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/read_error.h"
#include "http/object.h"

namespace streamer {

class Secrets {
 public:
  // Ignores secrets of less than four characters, because they occur in ordinary text.
  void add(std::string_view secret);
  // Adds the secrets of a URL: the password, and all query parameters except those known to be
  // harmless.
  void add_of_url(std::string_view url);
  // Adds the value of a header "name: value", unless the header is known to be harmless.
  void add_of_header(std::string_view line);

  // Returns `text` with every secret replaced by "***".
  std::string masked(const std::string& text) const;

 private:
  std::vector<std::string> secrets_;  // percent-decoded
};

// Masks the secrets of a request in all texts of `error` that a server may have written.
void mask_secrets(ReadError& error, const HttpTarget& target);

}  // namespace streamer
