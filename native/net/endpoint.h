// What all loads of the process know of one server: how hard it may be pressed.
//
// How large a request should be, and two brakes. A budget of retry tokens (botocore's "standard"
// mode has the same idea): a failure costs more than a success gives back, so a server that keeps
// failing is soon left alone instead of being asked eight times for every
// block. And the throttle window. An endpoint lives as long as an object of
// some load points at it.
//
// Thread-safe.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "net/latency_record.h"
#include "net/request_size.h"
#include "net/retry.h"
#include "net/throttle_window.h"

namespace streamer {

class Endpoint {
 public:
  // The endpoint of a URL: the same for all URLs of one scheme, host and port.
  static std::shared_ptr<Endpoint> of(std::string_view url);

  // Takes room for one request; nothing when the window is full. Each must be
  // finished.
  std::optional<ThrottleWindow::Epoch> try_start();

  // The request took so long; `is_full_size` if that can be compared with others.
  void finish_well(double seconds, bool is_full_size);
  // It asked for so many bytes, and its answer took so long. Once it is finished well.
  void record_answer(std::uint64_t bytes, double seconds);
  // The request failed or was given up.
  void finish(ThrottleWindow::Epoch started_in, FailureKind kind);
  void finish_cancelled();

  // How long a request may take before it is slower than 95 in 100; nothing while unknown.
  std::optional<double> slow_after_s();

  // How many bytes a request should ask for.
  std::uint64_t request_bytes();

  // Pays for another attempt; false when too much failed here lately.
  bool try_retry(FailureKind kind);

 private:
  static constexpr int kTokens = 500;
  static constexpr int kTransientCost = 14;
  static constexpr int kThrottleCost = 5;  // a throttling server works; it wants patience
  static constexpr int kSuccessGain = 1;

  std::mutex mutex_;
  ThrottleWindow window_;  // guarded by mutex_
  LatencyRecord latency_;  // guarded by mutex_
  RequestSize size_;       // guarded by mutex_
  int tokens_ = kTokens;   // guarded by mutex_
};

// "https://host:port" of a URL, without user, path and query; what is in front
// of the path.
std::string endpoint_key(std::string_view url);

}  // namespace streamer
