// The addresses of a server's name. Spreads connections over all of these addresses.
//
// A store has many addresses, and behind each of them a machine with its own bandwidth. A resolver
// returns a few addresses at a time. libcurl looks a name up once, and all connections of a reactor
// go to the first address that answers. So each request gets the list rotated by one more place,
// which matters if the request opens a connection. An address that does not answer is left out for
// a while, and so is one that is less than half as fast as the others. The last remaining address
// is never left out.
//
// The resolver runs on a separate thread, once a minute. Until it has answered, libcurl looks the
// name up itself. The book stays empty for a name with one address, and for an address in the URL.
// It also stays empty if the environment names a proxy, because then the proxy connects to the
// server.
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
  // `server`: "https://host:port" or "http://host". For another scheme the book stays empty.
  explicit AddressBook(const std::string& server);

  // Returns an entry for CURLOPT_RESOLVE: the host, its port, and its addresses in the order in
  // which libcurl tries them. The entry is empty if there is no choice.
  std::string next_entry(TimePoint now);

  // Records the speed of a response from this address, measured from its first byte on.
  void record(const std::string& address, double bytes_per_second, TimePoint now);
  // Records that the address did not answer.
  void record_silence(const std::string& address, TimePoint now);
  bool is_left_out(const std::string& address, TimePoint now);
  // Whether any address is left out now. If so, a failed request goes to the other addresses.
  // Otherwise the name is looked up again.
  bool has_left_out(TimePoint now);

  // Stores the addresses that the resolver returned. Public for tests.
  void take_answer(const std::vector<std::string>& addresses);

 private:
  struct Entry {
    std::string address;
    double bytes_per_second = 0;  // moving average of the last responses
    unsigned answers = 0;
    std::optional<TimePoint> left_out_until = {};

    bool is_open(TimePoint now) const { return !left_out_until || now >= *left_out_until; }
  };

  void look_up_if_due(TimePoint now);
  bool is_slow(const Entry& entry) const;
  void leave_out(Entry& entry, TimePoint now);
  Entry* find(const std::string& address);

  std::string host_;  // the book stays empty if this is empty
  std::string port_;
  std::mutex mutex_;
  std::vector<Entry> entries_;             // guarded by mutex_
  std::size_t next_ = 0;                   // guarded by mutex_
  std::optional<TimePoint> looked_up_at_;  // guarded by mutex_
};

}  // namespace streamer
