// Simulates loads from a server that fails some requests, without sockets and clocks.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <vector>

#include "net/endpoint.h"
#include "net/retry.h"

namespace streamer {
namespace {

constexpr double kAnswerS = 0.03;  // varies by a fifth
constexpr std::size_t kInFlight = 64;

// Returns whether a request at this time (in seconds) is refused.
using Refuses = std::function<bool(double)>;

Refuses never() {
  return [](double) { return false; };
}

Refuses at_random(double share) {
  return [share, random = std::mt19937_64(1)](double) mutable {
    return std::uniform_real_distribution<double>(0, 1)(random) < share;
  };
}

// Returns a token bucket: it refuses requests beyond `per_s` requests per second.
Refuses beyond(double per_s, double burst = 20) {
  return [=, tokens = burst, last = 0.0](double now) mutable {
    tokens = std::min(burst, tokens + (now - last) * per_s);
    last = now;
    if (tokens < 1) return true;
    tokens -= 1;
    return false;
  };
}

struct Report {
  double seconds = 0;
  double requests_per_block = 0;
  int given_up = 0;  // blocks whose failure would end the load
  std::uint64_t outages = 0;
};

// Uses an endpoint in the same way as a reactor and BlockRetries.
class SimulatedLoad {
 public:
  // `status`: the status of the response to a refused request; 0 resets the connection.
  SimulatedLoad(int blocks, Refuses refuses, int status = 503)
      : refuses_(std::move(refuses)), status_(status), attempts_(blocks) {
    for (int block = 0; block < blocks; ++block) due_.emplace(0, block);
  }

  Report run() {
    while (!due_.empty() || !under_way_.empty()) {
      start_what_may();
      now_ = std::max(now_, next_event());
      while (!under_way_.empty() && under_way_.begin()->first <= now_) settle_first();
    }
    return {.seconds = now_,
            .requests_per_block = requests_ / static_cast<double>(attempts_.size()),
            .given_up = given_up_,
            .outages = endpoint_.totals(clock()).outages};
  }

 private:
  struct Request {
    int block;
    OutageTicket ticket;
    bool is_refused;
  };

  TimePoint clock() const { return after(began_, now_); }
  double drawn() { return std::uniform_real_distribution<double>(0, 1)(random_); }
  bool has_room() const { return under_way_.size() < kInFlight && !due_.empty(); }

  void start_what_may() {
    while (has_room() && due_.begin()->first <= now_) {
      const auto ticket = endpoint_.try_start(clock());
      if (!ticket) return;
      const int block = due_.extract(due_.begin()).mapped();
      ++attempts_[static_cast<std::size_t>(block)];
      ++requests_;
      const double answered_at = now_ + kAnswerS * (0.8 + 0.4 * drawn());
      under_way_.emplace(answered_at, Request{block, *ticket, refuses_(now_)});
    }
  }

  double next_event() {
    double next = under_way_.empty() ? 1e9 : under_way_.begin()->first;
    if (!has_room()) return next;
    double start_at = due_.begin()->first;
    if (const auto open_at = endpoint_.closed_until(clock())) {
      start_at = std::max(start_at, seconds_between(began_, *open_at) + 1e-9);
    }
    return std::min(next, start_at);
  }

  void settle_first() {
    const Request request = under_way_.extract(under_way_.begin()).mapped();
    if (!request.is_refused) {
      endpoint_.finish_well(request.ticket, kAnswerS, true, clock());
      return;
    }
    const ErrorCode code = status_ == 0 ? ErrorCode::kConnect : ErrorCode::kHttpStatus;
    ReadError error = error_of(code, "refused");
    error.http_status = status_;
    int& attempts = attempts_[static_cast<std::size_t>(request.block)];
    const bool is_of_outage = endpoint_.finish_badly(request.ticket, error, clock());
    attempts -= is_of_outage;
    const AttemptHistory history{.attempts = attempts, .row_factor = endpoint_.row_factor()};
    given_up_ += !is_worth_another_attempt(error, history, {});
    const double delay_s = is_of_outage ? 0 : retry_delay_s(error, attempts, {}, drawn());
    due_.emplace(now_ + delay_s, request.block);
  }

  const TimePoint began_ = Clock::now();
  Refuses refuses_;
  const int status_;
  Endpoint endpoint_{"https://store", true};
  std::mt19937_64 random_{2};
  std::vector<int> attempts_;
  std::multimap<double, int> due_;  // blocks, ordered by the time of their next attempt
  std::multimap<double, Request> under_way_;
  double now_ = 0;
  double requests_ = 0;
  int given_up_ = 0;
};

TEST_CASE("with one random refusal in twenty, seven tenths of the speed remain") {
  const int blocks = 30'000;  // enough that the last refused blocks do not dominate
  const Report healthy = SimulatedLoad(blocks, never()).run();
  const Report refused = SimulatedLoad(blocks, at_random(0.05)).run();
  CHECK(healthy.seconds / refused.seconds >= 0.7);
  CHECK(refused.requests_per_block < 1.1);
  CHECK(refused.given_up == 0);
}

TEST_CASE(
    "a server with a limit of requests per second is sent at most twice the necessary requests") {
  const int blocks = 2'000;
  for (const double per_s : {40.0, 100.0, 400.0, 1000.0}) {
    CAPTURE(per_s);
    const Report report = SimulatedLoad(blocks, beyond(per_s)).run();
    CHECK(report.requests_per_block <= 2);
    CHECK(report.seconds < 2 * blocks / per_s);
    CHECK(report.given_up == 0);
  }
}

TEST_CASE("a server that accepts only half of the possible requests has few outages") {
  CHECK(SimulatedLoad(10'000, beyond(1000)).run().outages < 10);
}

TEST_CASE("a server that fails a quarter of all requests is seldom left without requests") {
  const Report report = SimulatedLoad(2'000, at_random(0.25)).run();
  CHECK(report.outages < 5);
  CHECK(report.requests_per_block < 1.5);
  CHECK(report.given_up == 0);
}

// Each block needs two requests on average. The unluckiest block is refused a dozen times, with
// pauses that are a quarter of a second long on average.
TEST_CASE("a server that fails half of all requests is as slow as the requests need (regression)") {
  for (const int status : {503, 429, 502, 0}) {
    for (const int blocks : {50, 200, 2'000}) {
      CAPTURE(status);
      CAPTURE(blocks);
      const Report healthy = SimulatedLoad(blocks, never()).run();
      const Report report = SimulatedLoad(blocks, at_random(0.5), status).run();
      CHECK(report.outages <= 5);
      CHECK(report.requests_per_block < 2.3);
      CHECK(report.seconds < 6 * healthy.seconds + 6);
    }
  }
}

TEST_CASE("a server that resets excess requests is sent few more requests than necessary") {
  const Report report = SimulatedLoad(2'000, beyond(100), 0).run();
  CHECK(report.requests_per_block <= 2);
  CHECK(report.seconds < 2 * 2'000 / 100.0);
}

}  // namespace
}  // namespace streamer
