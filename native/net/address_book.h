// The addresses that a server's name stands for, so that connections are spread over all of them.
//
// A store answers under many addresses, a few of which a resolver gives at a time, each that of a
// machine with a bandwidth of its own. libcurl looks a name up once, and all connections of a
// reactor go to the first address that answers. So each request is given the list turned by one,
// which counts where it makes a connection. An address that does not answer, or that brings less
// than half of what others do, is left out for a while, unless it is the last.
//
// The resolver is asked on a thread of its own, and once a minute; until it has answered, libcurl
// asks itself. Nothing is chosen for a name with one address, for an address in the URL, or where
// the environment names a proxy, which makes the connections then.
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"

namespace streamer {

class AddressBook : public std::enable_shared_from_this<AddressBook> {
 public:
  // Of "https://host:port", or "http://host"; of another scheme, it stays empty.
  explicit AddressBook(const std::string& server);

  // What CURLOPT_RESOLVE takes: the host, its port, and its addresses in the order in which to try
  // them. Empty where there is no choice.
  std::string next_entry(TimePoint now);

  // An answer of that address brought so much once it had begun.
  void record(const std::string& address, double bytes_per_second, TimePoint now);
  // It was asked, and said nothing.
  void record_silence(const std::string& address, TimePoint now);
  bool is_left_out(const std::string& address, TimePoint now);
  // A request that failed goes where others answer; else its name is looked up anew.
  bool has_left_out(TimePoint now);

  // What the resolver said; also for tests.
  void take_answer(const std::vector<std::string>& addresses);

 private:
  struct Entry {
    std::string address;
    double bytes_per_second = 0;  // of the last answers, the newest counting most
    unsigned answers = 0;
    std::optional<TimePoint> left_out_until = {};

    bool is_open(TimePoint now) const { return !left_out_until || now >= *left_out_until; }
  };

  void look_up_if_due(TimePoint now);
  bool is_slow(const Entry& entry) const;
  void leave_out(Entry& entry, TimePoint now);
  Entry* find(const std::string& address);

  std::string host_;  // empty: nothing is chosen
  std::string port_;
  std::mutex mutex_;
  std::vector<Entry> entries_;         // guarded by mutex_
  std::size_t next_ = 0;               // guarded by mutex_
  std::optional<TimePoint> asked_at_;  // guarded by mutex_
};

}  // namespace streamer
