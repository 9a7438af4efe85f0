#include "http/demanded_pause.h"

#include <curl/curl.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace streamer {
namespace {

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

std::optional<double> seconds_in(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return static_cast<double>(value);
}

// libcurl parses dates in every form that HTTP has, whatever the locale.
std::optional<double> unix_time_in(const std::string& date) {
  const time_t time = curl_getdate(date.c_str(), nullptr);
  return time < 0 ? std::nullopt : std::optional(static_cast<double>(time));
}

// Returns when the response was sent, by the server's clock. Its Date has whole seconds only. If
// this machine's clock agrees with the Date, this machine's clock is more exact and is used.
double sent_at_s(const std::string& date, double unix_now_s) {
  constexpr double kCutAndTransferS = 2;
  const auto sent = date.empty() ? std::nullopt : unix_time_in(date);
  const double ahead_s = sent ? unix_now_s - *sent : 0;
  return ahead_s >= 0 && ahead_s < kCutAndTransferS ? unix_now_s : *sent;
}

double retry_after_s(const PauseHeaders& headers, double unix_now_s) {
  if (headers.retry_after.empty()) return 0;
  if (const auto seconds = seconds_in(headers.retry_after)) return *seconds;
  const bool may_be_date = headers.retry_after.find(':') != std::string::npos;
  const auto until = may_be_date ? unix_time_in(headers.retry_after) : std::nullopt;
  return until ? std::max(0.0, *until - sent_at_s(headers.date, unix_now_s)) : 0;
}

// Splits at separators outside of quoted strings.
std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  std::size_t begin = 0;
  bool is_quoted = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '\\' && is_quoted) {
      ++at;
    } else if (text[at] == '"') {
      is_quoted = !is_quoted;
    } else if (text[at] == separator && !is_quoted) {
      parts.push_back(trim(text.substr(begin, at - begin)));
      begin = at + 1;
    }
  }
  parts.push_back(trim(text.substr(begin)));
  return parts;
}

std::optional<double> parameter(const std::vector<std::string_view>& item, std::string_view name) {
  for (const std::string_view part : item) {
    if (part.starts_with(name)) return seconds_in(part.substr(name.size()));
  }
  return std::nullopt;
}

// Returns the longest time until a used-up quota is full again.
double rate_limit_s(std::string_view value) {
  double longest_s = 0;
  for (const std::string_view quota : split(value, ',')) {
    const std::vector<std::string_view> item = split(quota, ';');
    const bool is_used_up = parameter(item, "r=") == 0.0;
    if (is_used_up) longest_s = std::max(longest_s, parameter(item, "t=").value_or(0));
  }
  return longest_s;
}

}  // namespace

double demanded_pause_s(int status, const PauseHeaders& headers, double unix_now_s) {
  const double demanded_s = retry_after_s(headers, unix_now_s);
  const bool is_throttled = status == 429 || status == 503;
  return demanded_s > 0 || !is_throttled ? demanded_s : rate_limit_s(headers.rate_limit);
}

}  // namespace streamer
