#include "net/address_book.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "net/server_addresses.h"

namespace streamer {
namespace {

constexpr double kLookUpEveryS = 60;
constexpr double kLeftOutS = 30;
constexpr unsigned kFewestAnswers = 4;  // with fewer answers, one slow answer would decide
constexpr double kSlowShare = 0.5;      // an address below this share of the others' median is slow
constexpr double kNewestShare = 0.25;

bool is_address(const std::string& host) {
  in6_addr address{};
  return inet_pton(AF_INET, host.c_str(), &address) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

bool is_of_version_6(const std::string& address) { return address.find(':') != std::string::npos; }

bool has_proxy_in_environment() {
  const auto names = {"http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"};
  return std::any_of(names.begin(), names.end(), [](const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr && *value != '\0';
  });
}

}  // namespace

AddressBook::AddressBook(const std::string& server) {
  const bool is_secure = server.starts_with("https://");
  if ((!is_secure && !server.starts_with("http://")) || has_proxy_in_environment()) return;
  const std::string place = server.substr(server.find("://") + 3);
  if (place.starts_with('[')) return;  // an IPv6 address
  const std::size_t colon = place.find(':');
  const std::string host = place.substr(0, colon);
  if (host.empty() || is_address(host)) return;
  host_ = host;
  port_ = is_secure ? "443" : "80";
  if (colon != std::string::npos) port_ = place.substr(colon + 1);
}

// IPv4 and IPv6 addresses are rotated separately. The IP version that the resolver lists first
// stays first.
std::string AddressBook::next_entry(TimePoint now) {
  if (host_.empty()) return {};
  const std::lock_guard lock(mutex_);
  look_up_if_due(now);
  std::vector<std::string> open;
  for (const Entry& entry : entries_) {
    if (entry.is_open(now)) open.push_back(entry.address);
  }
  if (entries_.size() < 2) return {};
  const bool is_first_of_version_6 = is_of_version_6(open.front());
  const auto border = std::stable_partition(open.begin(), open.end(), [&](const std::string& each) {
    return is_of_version_6(each) == is_first_of_version_6;
  });
  const bool has_all = open.size() == entries_.size();
  const auto most = std::max(border - open.begin(), open.end() - border);
  if (has_all && most < 2) return {};  // one address of each IP version, like localhost
  const std::size_t turn = next_++;
  for (const auto& [begin, end] :
       {std::pair(open.begin(), border), std::pair(border, open.end())}) {
    const auto count = static_cast<std::size_t>(end - begin);
    if (count > 1) std::rotate(begin, begin + static_cast<std::ptrdiff_t>(turn % count), end);
  }
  // The plus sign makes the entry expire like libcurl's own entries.
  std::string text = "+" + host_ + ":" + port_ + ":";
  for (const std::string& each : open) {
    if (text.back() != ':' || &each != &open.front()) text += ',';
    text += is_of_version_6(each) ? "[" + each + "]" : each;
  }
  return text;
}

void AddressBook::look_up_if_due(TimePoint now) {
  if (looked_up_at_ && seconds_between(*looked_up_at_, now) < kLookUpEveryS) return;
  looked_up_at_ = now;
  ask_for_addresses(host_, [book = weak_from_this()](const std::vector<std::string>& addresses) {
    if (const auto alive = book.lock()) alive->take_answer(addresses);
  });
}

// If the new answer lists a known address again, the measurements of this address stay.
void AddressBook::take_answer(const std::vector<std::string>& addresses) {
  const std::lock_guard lock(mutex_);
  std::vector<Entry> entries;
  for (const std::string& address : addresses) {
    const Entry* const before = find(address);
    entries.push_back(before != nullptr ? *before : Entry{.address = address});
  }
  if (!entries.empty()) entries_ = std::move(entries);  // otherwise the resolver failed
}

void AddressBook::record(const std::string& address, double bytes_per_second, TimePoint now) {
  const std::lock_guard lock(mutex_);
  Entry* const entry = find(address);
  if (entry == nullptr || !entry->is_open(now)) return;
  const double share = entry->answers == 0 ? 1 : kNewestShare;
  entry->bytes_per_second += share * (bytes_per_second - entry->bytes_per_second);
  ++entry->answers;
  if (is_slow(*entry)) leave_out(*entry, now);
}

void AddressBook::record_silence(const std::string& address, TimePoint now) {
  const std::lock_guard lock(mutex_);
  Entry* const entry = find(address);
  if (entry != nullptr) leave_out(*entry, now);
}

void AddressBook::leave_out(Entry& entry, TimePoint now) {
  const auto is_other = [&](const Entry& each) { return &each != &entry && each.is_open(now); };
  if (std::none_of(entries_.begin(), entries_.end(), is_other)) return;
  entry.left_out_until = after(now, kLeftOutS);
  entry.answers = 0;
}

bool AddressBook::has_left_out(TimePoint now) {
  const std::lock_guard lock(mutex_);
  return std::any_of(entries_.begin(), entries_.end(),
                     [now](const Entry& each) { return !each.is_open(now); });
}

// The fastest address is never slow, so at least one address is left.
bool AddressBook::is_slow(const Entry& entry) const {
  std::vector<double> others;
  for (const Entry& each : entries_) {
    if (&each != &entry && each.answers >= kFewestAnswers) others.push_back(each.bytes_per_second);
  }
  if (entry.answers < kFewestAnswers || others.empty()) return false;
  const auto middle = others.begin() + static_cast<std::ptrdiff_t>(others.size() / 2);
  std::nth_element(others.begin(), middle, others.end());
  return entry.bytes_per_second < kSlowShare * *middle;
}

bool AddressBook::is_left_out(const std::string& address, TimePoint now) {
  const std::lock_guard lock(mutex_);
  const Entry* const entry = find(address);
  return entry != nullptr && !entry->is_open(now);
}

AddressBook::Entry* AddressBook::find(const std::string& address) {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& each) { return each.address == address; });
  return found == entries_.end() ? nullptr : &*found;
}

}  // namespace streamer
