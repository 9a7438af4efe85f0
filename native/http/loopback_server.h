// An HTTP server for the native tests. It serves one object, whole or by ranges. For each request,
// the script of the test may choose a fault.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace streamer {

enum class LoopbackFault : std::uint8_t {
  kNone,
  kUnavailable,
  kCut,
  kCutAtOnce,
  kSlow,
  kSilent,
  kFlip
};

class LoopbackServer {
 public:
  using Script = std::function<LoopbackFault(int request_number)>;

  explicit LoopbackServer(std::string data, Script script = {});
  ~LoopbackServer();
  LoopbackServer(const LoopbackServer&) = delete;
  LoopbackServer& operator=(const LoopbackServer&) = delete;

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_) + "/object"; }
  int requests() const { return requests_; }
  int connections() const { return accepted_; }
  int open_connections() const { return accepted_ - closed_; }

 private:
  void accept_connections();
  void serve(int connection);
  std::string whole(const std::string& request) const;
  bool answer(int connection, const std::string& request);

  const std::string data_;
  const Script script_;
  int listener_ = -1;
  std::uint16_t port_ = 0;
  std::atomic<int> requests_{0};
  std::atomic<int> accepted_{0};
  std::atomic<int> closed_{0};
  std::atomic<bool> is_stopping_{false};
  std::vector<std::thread> connections_;  // only the accepting thread adds to it
  std::thread acceptor_;
};

}  // namespace streamer
