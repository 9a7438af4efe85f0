// A checksum that a server sends with each response on request: how to request it, and how to parse
// it. Pure.
//
// The server computes the checksum while it sends the bytes. So the checksum detects changes on the
// way, not changes in storage.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "integrity/crc.h"

namespace streamer {

struct AnswerChecksum {
  enum class Order : bool { kMostSignificantFirst, kLeastSignificantFirst };

  std::string request_header = {};  // "name: value"
  std::string answer_header = {};   // name of the header; its value is the checksum in base64
  Crc code = Crc::kCrc64Nvme;
  Order order = Order::kMostSignificantFirst;
  std::uint64_t max_bytes = 0;  // size of the largest range for which the server computes it
};

// Whether the storage's error code means that it does not support a request header. Azure has codes
// for a header that does not fit the request. Azurite has a code for features that it lacks.
bool means_unknown_header(std::string_view storage_code);

// Returns the checksum in the text of the header; nothing if the text is malformed.
std::optional<std::uint64_t> value_of(const AnswerChecksum& checksum, std::string_view text);

}  // namespace streamer
