#include "net/endpoint.h"

#include <algorithm>
#include <cctype>
#include <map>

namespace streamer {
namespace {

// Every endpoint some load uses. Never destroyed: reactors may outlive static
// objects at exit.
struct Table {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<Endpoint>> endpoints;  // guarded by mutex

  static Table& instance() {
    static Table* const table = new Table;
    return *table;
  }
};

}  // namespace

std::string endpoint_key(std::string_view url) {
  const std::size_t scheme_end = url.find("://");
  const std::size_t host_begin = scheme_end == std::string_view::npos ? 0 : scheme_end + 3;
  std::string_view authority = url.substr(host_begin);
  authority = authority.substr(0, authority.find_first_of("/?#"));
  const std::size_t user_end = authority.rfind('@');
  if (user_end != std::string_view::npos) authority.remove_prefix(user_end + 1);
  std::string key(url.substr(0, host_begin));
  key.append(authority);
  std::transform(key.begin(), key.end(), key.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return key;
}

std::shared_ptr<Endpoint> Endpoint::of(std::string_view url) {
  Table& table = Table::instance();
  const std::lock_guard lock(table.mutex);
  std::erase_if(table.endpoints, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<Endpoint>& known = table.endpoints[endpoint_key(url)];
  std::shared_ptr<Endpoint> endpoint = known.lock();
  if (!endpoint) known = endpoint = std::make_shared<Endpoint>();
  return endpoint;
}

std::optional<ThrottleWindow::Epoch> Endpoint::try_start() {
  const std::lock_guard lock(mutex_);
  if (!window_.has_room()) return std::nullopt;
  return window_.start();
}

void Endpoint::finish_well(double seconds, bool is_full_size) {
  const std::lock_guard lock(mutex_);
  if (is_full_size) latency_.add(seconds);
  window_.finish_well();
  tokens_ = std::min(kTokens, tokens_ + kSuccessGain);
}

void Endpoint::record_answer(std::uint64_t bytes, double seconds) {
  const std::lock_guard lock(mutex_);
  const bool is_changed = size_.record(bytes, seconds, window_.in_flight() + 1);
  if (is_changed) latency_ = {};  // of requests of another size
}

void Endpoint::finish(ThrottleWindow::Epoch started_in, FailureKind kind) {
  const std::lock_guard lock(mutex_);
  if (kind == FailureKind::kThrottle) {
    window_.finish_throttled(started_in);
  } else {
    window_.finish_otherwise();
  }
}

void Endpoint::finish_cancelled() {
  const std::lock_guard lock(mutex_);
  window_.finish_otherwise();
}

std::optional<double> Endpoint::slow_after_s() {
  const std::lock_guard lock(mutex_);
  return latency_.percentile_95();
}

std::uint64_t Endpoint::request_bytes() {
  const std::lock_guard lock(mutex_);
  return size_.bytes();
}

bool Endpoint::try_retry(FailureKind kind) {
  if (kind == FailureKind::kStale) return true;  // the server works; the credentials did not
  const int cost = kind == FailureKind::kThrottle ? kThrottleCost : kTransientCost;
  const std::lock_guard lock(mutex_);
  if (tokens_ < cost) return false;
  tokens_ -= cost;
  return true;
}

}  // namespace streamer
