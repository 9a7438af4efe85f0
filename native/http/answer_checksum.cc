#include "http/answer_checksum.h"

#include <algorithm>
#include <string>

namespace streamer {
namespace {

// Decodes base64 with padding (RFC 4648 §4). Returns nothing unless `text` is the canonical form of
// exactly `bytes` bytes.
std::optional<std::string> base64_decoded(std::string_view text, std::size_t bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const std::size_t digits = (bytes * 8 + 5) / 6;
  const std::size_t padded = (bytes + 2) / 3 * 4;
  if (text.size() != padded || text.substr(digits) != std::string(padded - digits, '=')) {
    return std::nullopt;
  }
  std::string decoded;
  std::uint32_t pending = 0;
  unsigned pending_bits = 0;
  for (const char each : text.substr(0, digits)) {
    const std::size_t digit = kDigits.find(each);
    if (digit == std::string_view::npos) return std::nullopt;
    pending = (pending << 6 | static_cast<std::uint32_t>(digit)) & 0xFFFF;
    pending_bits += 6;
    if (pending_bits < 8) continue;
    pending_bits -= 8;
    decoded.push_back(static_cast<char>(pending >> pending_bits & 0xFF));
  }
  const bool has_rest = (pending & ((1U << pending_bits) - 1)) != 0;
  return has_rest ? std::nullopt : std::optional(decoded);
}

}  // namespace

bool means_unknown_header(std::string_view storage_code) {
  return storage_code == "UnsupportedHeader" || storage_code == "FeatureNotSupported" ||
         storage_code == "InvalidHeaderValue";
}

std::optional<std::uint64_t> value_of(const AnswerChecksum& checksum, std::string_view text) {
  std::optional<std::string> bytes = base64_decoded(text, bytes_of(checksum.code));
  if (!bytes) return std::nullopt;
  if (checksum.order == AnswerChecksum::Order::kLeastSignificantFirst) {
    std::reverse(bytes->begin(), bytes->end());
  }
  std::uint64_t value = 0;
  for (const char each : *bytes) value = value << 8 | static_cast<unsigned char>(each);
  return value;
}

}  // namespace streamer
