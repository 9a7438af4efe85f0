// A checksum that a server sends of each answer when a request asks for it: how to ask, and how to
// read what it says. Pure.
//
// It is of the bytes the server sends, taken as it sends them: it finds what changed on the way,
// not what changed at rest.
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
  std::string answer_header = {};   // its name; base64 of the value's bytes
  Crc code = Crc::kCrc64Nvme;
  Order order = Order::kMostSignificantFirst;
  std::uint64_t max_bytes = 0;  // a request for more would be refused
};

// Does the storage's own word for a failure say that it knows no such request header? Azure has one
// for a header that does not belong to a request, Azurite one for what it lacks.
bool means_unknown_header(std::string_view storage_code);

// The value that the text of the header stands for; nothing where it is malformed.
std::optional<std::uint64_t> value_of(const AnswerChecksum& checksum, std::string_view text);

}  // namespace streamer
