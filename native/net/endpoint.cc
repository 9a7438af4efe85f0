#include "net/endpoint.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <map>
#include <set>
#include <utility>

#include "net/proxy.h"

namespace streamer {
namespace {

// Pause until the next check whether a server has room again, if its window is full or it is being
// probed.
constexpr double kRoomPollS = 0.02;
// Limit for the endpoints that are remembered as answered, in a process that contacts ever new
// servers.
constexpr std::size_t kMostRemembered = 10'000;

using NameAndRoute = std::pair<std::string, std::size_t>;

// Every endpoint that a load uses. Never destroyed: reactors may outlive static objects at exit.
struct Table {
  std::mutex mutex;
  std::map<NameAndRoute, std::weak_ptr<Endpoint>> endpoints;  // guarded by mutex
  std::set<NameAndRoute> answered;                            // guarded by mutex

  static Table& instance() {
    static std::atomic<Table*> table = new Table;
    // The parent's threads do not exist in a forked child. Locks that they held, such as this
    // mutex, would stay locked forever. So the child gets a new table.
    static const int is_forgotten_in_child =
        pthread_atfork(nullptr, nullptr, [] { table = new Table; });
    (void)is_forgotten_in_child;
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

std::shared_ptr<Endpoint> Endpoint::of(std::string_view url, const std::string& proxy) {
  return on_route(endpoint_key(url), route_to(url, proxy));
}

std::shared_ptr<Endpoint> Endpoint::named(const std::string& name) { return on_route(name, 0); }

std::shared_ptr<Endpoint> Endpoint::on_route(const std::string& name, std::size_t route) {
  Table& table = Table::instance();
  const std::lock_guard lock(table.mutex);
  std::erase_if(table.endpoints, [](const auto& entry) { return entry.second.expired(); });
  const NameAndRoute key{name, route};
  std::shared_ptr<WaitingRequests> waiting;
  for (auto other = table.endpoints.lower_bound({name, 0});
       other != table.endpoints.end() && other->first.first == name; ++other) {
    const std::shared_ptr<Endpoint> endpoint = other->second.lock();
    if (endpoint && other->first == key) return endpoint;
    if (endpoint) waiting = endpoint->waiting;
  }
  auto endpoint =
      std::make_shared<Endpoint>(name, table.answered.contains(key), route, std::move(waiting));
  table.endpoints[key] = endpoint;
  return endpoint;
}

void Endpoint::forget_all_for_tests() {
  Table& table = Table::instance();
  const std::lock_guard lock(table.mutex);
  table.endpoints.clear();
  table.answered.clear();
}

std::optional<TimePoint> Endpoint::closed_until(TimePoint now) {
  const std::lock_guard lock(mutex_);
  return closed_until_locked(now);
}

std::optional<TimePoint> Endpoint::closed_until_locked(TimePoint now) const {
  const bool is_open = outage_.is_open() ? outage_.may_probe(now) : window_.has_room();
  if (is_open) return std::nullopt;
  const TimePoint soon = after(now, kRoomPollS);
  return outage_.is_open() ? std::max(outage_.probe_at(), soon) : soon;
}

std::optional<OutageTicket> Endpoint::try_start(TimePoint now, std::uint64_t object) {
  const std::lock_guard lock(mutex_);
  if (closed_until_locked(now)) return std::nullopt;
  return start_locked(object);
}

std::optional<OutageTicket> Endpoint::try_start_lookup(TimePoint now, std::uint64_t object) {
  const std::lock_guard lock(mutex_);
  if (outage_.is_open() && !outage_.may_probe(now)) return std::nullopt;
  const OutageTicket ticket = start_locked(object);
  if (ticket.is_probe) outage_.lose_probe_at(after(now, ticket.first_byte_s));
  return ticket;
}

OutageTicket Endpoint::start_locked(std::uint64_t object) {
  OutageTicket ticket = outage_.start(object);
  ticket.in_flight = window_.start();
  return ticket;
}

void Endpoint::finish_well(const OutageTicket& ticket, double seconds, bool is_full_size,
                           TimePoint now) {
  const std::lock_guard lock(mutex_);
  note_answer_locked();
  if (is_full_size) latency_.add(seconds);
  outage_.finish_well(ticket, now);
  window_.finish_well(ticket.in_flight);
}

void Endpoint::record_answer(std::uint64_t bytes, const AnswerTimes& times) {
  const std::lock_guard lock(mutex_);
  const auto size_before = static_cast<double>(size_.bytes());
  const bool is_suggested = size_.record_wait(times.first_byte_s);
  const bool is_tried =
      size_.record(bytes, times.complete_s, window_.in_flight() + 1, times.first_byte_s);
  const bool is_changed = is_suggested || is_tried;
  if (is_changed) latency_.start_over(static_cast<double>(size_.bytes()) / size_before);
}

bool Endpoint::finish_badly(const OutageTicket& ticket, const ReadError& error, TimePoint now) {
  const FailureKind kind = classify(error);
  const std::lock_guard lock(mutex_);
  const bool is_answer = error.http_status != 0 || !error.storage_code.empty();
  if (is_answer && !error.is_of_proxy) note_answer_locked();
  bool is_of_outage = false;
  if (kind != FailureKind::kTransient && kind != FailureKind::kThrottle) {
    outage_.finish_well(ticket, now);  // the server works, only this request was wrong
  } else if (has_answered_) {          // otherwise the address may be wrong
    const bool was_open = outage_.is_open();
    const double drawn = std::uniform_real_distribution<double>(0, 1)(random_);
    is_of_outage = outage_.finish_badly(ticket, kind, error, window_.in_flight(), now, drawn,
                                        window_.is_least());
    if (outage_.is_open() && !was_open) window_.halve();
    // A request that was in flight when an outage began failed because of the outage, not because
    // too many requests were in flight.
    const bool is_by_pressure = !is_of_outage || !was_open || ticket.is_probe;
    if (is_by_pressure) window_.record_failure(ticket.in_flight);
    if (!is_of_outage) window_.shrink(ticket.in_flight);
  }
  window_.finish_otherwise();
  return is_of_outage;
}

void Endpoint::cancel(const OutageTicket& ticket) {
  const std::lock_guard lock(mutex_);
  outage_.cancel(ticket);
  window_.finish_otherwise();
}

bool Endpoint::is_fault_of(std::uint64_t object, const ReadError& error) {
  const std::lock_guard lock(mutex_);
  return may_be_of_one_object(error) && outage_.is_fault_of(object);
}

std::optional<double> Endpoint::slow_after_s() {
  const std::lock_guard lock(mutex_);
  return latency_.slow_after();
}

RequestAdvice Endpoint::advice() {
  const std::lock_guard lock(mutex_);
  return {.bytes = size_.bytes(),
          .is_distant = size_.is_distant(),
          .first_byte_s = size_.least_wait_s()};
}

double Endpoint::row_factor() {
  const std::lock_guard lock(mutex_);
  return outage_.row_factor();
}

bool Endpoint::has_answered() {
  const std::lock_guard lock(mutex_);
  return has_answered_;
}

std::optional<OutageRecord> Endpoint::outage() {
  const std::lock_guard lock(mutex_);
  if (!outage_.is_open()) return std::nullopt;
  return outage_.story();
}

OutageTotals Endpoint::totals(TimePoint now) {
  const std::lock_guard lock(mutex_);
  return outage_.totals(now);
}

void Endpoint::note_answer() {
  const std::lock_guard lock(mutex_);
  note_answer_locked();
}

// The caller holds mutex_. The table's mutex is always locked after mutex_, never before it.
void Endpoint::note_answer_locked() {
  if (std::exchange(has_answered_, true)) return;
  Table& table = Table::instance();
  const std::lock_guard lock(table.mutex);
  if (table.answered.size() < kMostRemembered) table.answered.insert({name_, route_});
}

}  // namespace streamer
