#include "http/secrets.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_set>
#include <utility>

#include "http/range_response.h"

namespace streamer {
namespace {

// Shorter secrets, such as "on" and "443", are in many sentences.
constexpr std::size_t kShortest = 4;
constexpr std::size_t kPiece = 16;  // long enough that other text does not contain it by chance
constexpr int kEncodings = 3;       // levels, for example a URL in a URL in a redirect
constexpr std::string_view kMask = "***";

// Parameters without secrets in signed URLs of S3, Google and Azure, and parameters that select an
// object.
constexpr std::array kHarmlessKeys = {"X-Amz-Algorithm",
                                      "X-Amz-Date",
                                      "X-Amz-Expires",
                                      "X-Amz-SignedHeaders",
                                      "x-id",
                                      "X-Goog-Algorithm",
                                      "X-Goog-Date",
                                      "X-Goog-Expires",
                                      "X-Goog-SignedHeaders",
                                      "sv",
                                      "se",
                                      "st",
                                      "sp",
                                      "sr",
                                      "spr",
                                      "versionId",
                                      "versionid",
                                      "generation",
                                      "alt",
                                      "userProject"};
constexpr std::array kHarmlessHeaders = {"accept",
                                         "accept-encoding",
                                         "date",
                                         "host",
                                         "range",
                                         "user-agent",
                                         "x-amz-date",
                                         "x-ms-date",
                                         "x-amz-content-sha256",
                                         "x-ms-version",
                                         "x-amz-request-payer",
                                         "x-goog-user-project"};

// Percent-decoded text, with the offset of each of its characters in the original.
struct Decoded {
  std::string text;
  std::vector<std::size_t> begins;  // and the end of the last character
};

std::optional<char> byte_of(std::string_view digits) {
  std::uint8_t value = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  const bool is_whole = digits.size() == 2 && end == digits.data() + digits.size();
  return error == std::errc() && is_whole ? std::optional(static_cast<char>(value)) : std::nullopt;
}

Decoded decoded_once(const Decoded& from) {
  Decoded result;
  for (std::size_t at = 0; at < from.text.size();) {
    const std::optional<char> byte = from.text[at] == '%'
                                         ? byte_of(std::string_view(from.text).substr(at + 1, 2))
                                         : std::nullopt;
    result.text += byte.value_or(from.text[at]);
    result.begins.push_back(from.begins[at]);
    at += byte ? 3 : 1;
  }
  result.begins.push_back(from.begins.back());
  return result;
}

Decoded decoded(std::string_view text) {
  Decoded result{std::string(text), std::vector<std::size_t>(text.size() + 1)};
  for (std::size_t at = 0; at <= text.size(); ++at) result.begins[at] = at;
  for (int round = 0; round < kEncodings && result.text.find('%') != std::string::npos; ++round) {
    result = decoded_once(result);
  }
  return result;
}

bool is_letter(char character) { return std::isalnum(static_cast<unsigned char>(character)) != 0; }

bool is_word(std::string_view text, std::size_t begin, std::size_t end) {
  return (begin == 0 || !is_letter(text[begin - 1])) &&
         (end == text.size() || !is_letter(text[end]));
}

void mark_word(std::string_view text, std::string_view secret, std::vector<bool>& is_secret) {
  for (std::size_t at = text.find(secret); at != std::string_view::npos;
       at = text.find(secret, at + 1)) {
    if (is_word(text, at, at + secret.size())) {
      std::fill_n(is_secret.begin() + static_cast<std::ptrdiff_t>(at), secret.size(), true);
    }
  }
}

void mark_pieces(std::string_view text, std::string_view secret, std::vector<bool>& is_secret) {
  std::unordered_set<std::string_view> pieces;
  for (std::size_t at = 0; at + kPiece <= secret.size(); ++at) {
    pieces.insert(secret.substr(at, kPiece));
  }
  for (std::size_t at = 0; at + kPiece <= text.size(); ++at) {
    if (pieces.contains(text.substr(at, kPiece))) {
      std::fill_n(is_secret.begin() + static_cast<std::ptrdiff_t>(at), kPiece, true);
    }
  }
}

template <std::size_t kCount>
bool is_one_of(std::string_view name, const std::array<const char*, kCount>& names) {
  return std::any_of(names.begin(), names.end(),
                     [name](std::string_view each) { return equals_ignoring_case(name, each); });
}

std::pair<std::string_view, std::string_view> split(std::string_view text, std::string_view mark) {
  const std::size_t at = text.find(mark);
  if (at == std::string_view::npos) return {text, {}};
  return {text.substr(0, at), text.substr(at + mark.size())};
}

std::string from_base64(std::string_view text) {
  constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string result;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char letter : text) {
    const std::size_t value = kLetters.find(letter);
    if (value == std::string_view::npos) break;
    bits = bits << 6 | static_cast<std::uint32_t>(value);
    if ((count += 6) >= 8) result += static_cast<char>(bits >> (count -= 8) & 0xff);
  }
  return result;
}

}  // namespace

void Secrets::add(std::string_view secret) {
  if (secret.size() >= kShortest) secrets_.push_back(decoded(secret).text);
}

void Secrets::add_of_url(std::string_view url) {
  const std::string_view rest = split(url, "://").second;
  const auto [place, tail] = split(rest, "?");
  const std::string_view authority = place.substr(0, place.find('/'));
  const std::size_t at = authority.rfind('@');
  if (at != std::string_view::npos) {
    const auto [user, password] = split(authority.substr(0, at), ":");
    add(password.empty() ? user : password);  // without a password, the user may be a token
  }
  std::string_view query = split(tail, "#").first;
  while (!query.empty()) {
    const auto [pair, others] = split(query, "&");
    const auto [key, value] = split(pair, "=");
    if (!is_one_of(key, kHarmlessKeys)) add(value);
    query = others;
  }
}

void Secrets::add_of_header(std::string_view line) {
  auto [name, value] = split(line, ":");
  if (is_one_of(name, kHarmlessHeaders)) return;
  value.remove_prefix(std::min(value.find_first_not_of(' '), value.size()));
  if (equals_ignoring_case(name, "cookie")) {
    while (!value.empty()) {
      const auto [cookie, others] = split(value, ";");
      add(split(cookie, "=").second);
      value = others;
    }
    return;
  }
  const bool has_scheme = equals_ignoring_case(name, "authorization") ||
                          equals_ignoring_case(name, "proxy-authorization");
  const auto [scheme, credentials] = split(value, " ");
  add(has_scheme && !credentials.empty() ? credentials : value);
  if (equals_ignoring_case(scheme, "basic")) add(split(from_base64(credentials), ":").second);
}

std::string Secrets::masked(const std::string& text) const {
  const Decoded plain = decoded(text);
  std::vector<bool> is_secret(plain.text.size());
  for (const std::string& secret : secrets_) {
    const auto mark = secret.size() < kPiece ? mark_word : mark_pieces;
    mark(plain.text, secret, is_secret);
  }
  std::string result;
  for (std::size_t at = 0; at < is_secret.size(); ++at) {
    if (!is_secret[at]) {
      result += text.substr(plain.begins[at], plain.begins[at + 1] - plain.begins[at]);
    } else if (at == 0 || !is_secret[at - 1]) {
      result += kMask;
    }
  }
  return result;
}

void mask_secrets(ReadError& error, const HttpTarget& target) {
  Secrets secrets;
  secrets.add_of_url(target.url);
  secrets.add_of_url(target.proxy);
  for (const std::string& line : target.headers) secrets.add_of_header(line);
  for (std::string* text : {&error.detail, &error.storage_code, &error.request_id}) {
    *text = secrets.masked(*text);
  }
}

}  // namespace streamer
