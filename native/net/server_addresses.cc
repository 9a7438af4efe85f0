#include "net/server_addresses.h"

#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <system_error>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/engine_thread.h"
#include "net/name_lookup.h"

namespace streamer {
namespace {

constexpr double kPollS = 0.1;  // time between two checks whether the caller is interrupted

struct Answer {
  int code = 0;  // result of getaddrinfo(3)
  std::vector<std::string> addresses;
};

Answer ask_resolver(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* results = nullptr;
  Answer answer;
  answer.code = getaddrinfo(host.c_str(), nullptr, &hints, &results);
  if (answer.code != 0) return answer;
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(results, &freeaddrinfo);
  for (const addrinfo* each = results; each != nullptr; each = each->ai_next) {
    std::array<char, NI_MAXHOST> text{};
    if (getnameinfo(each->ai_addr, each->ai_addrlen, text.data(), text.size(), nullptr, 0,
                    NI_NUMERICHOST) == 0) {
      answer.addresses.emplace_back(text.data());
    }
  }
  if (answer.addresses.empty()) answer.code = EAI_NONAME;
  return answer;
}

// One lookup, which the caller may abandon. The thread that waits for the resolver shares only this
// object with the caller, and keeps it alive.
struct Question {
  std::mutex mutex;
  std::condition_variable is_answered;
  std::optional<Answer> answer;  // guarded by mutex
};

bool is_interrupted(const NameLookupLimits& limits) {
  return limits.is_interrupted && limits.is_interrupted();
}

// Returns nothing if the caller is interrupted or the deadline has passed.
std::optional<Answer> ask_until(const std::string& host, TimePoint deadline,
                                const NameLookupLimits& limits) {
  if (Clock::now() >= deadline) return std::nullopt;
  const auto question = std::make_shared<Question>();
  try {
    // getaddrinfo cannot be interrupted, and waits as long as resolv.conf says. So this thread is
    // detached, like libcurl's resolver threads.
    start_engine_thread("name", 0, [question, host] {
      Answer answer = ask_resolver(host);
      const std::lock_guard lock(question->mutex);
      question->answer = std::move(answer);
      question->is_answered.notify_one();
    }).detach();
  } catch (const std::system_error&) {
    return ask_resolver(host);  // the system starts no thread, so this one waits for the resolver
  }
  std::unique_lock lock(question->mutex);
  while (!question->answer && Clock::now() < deadline) {
    const TimePoint slice_end = std::min(deadline, after(Clock::now(), kPollS));
    question->is_answered.wait_until(lock, slice_end);
    lock.unlock();
    const bool is_abandoned = is_interrupted(limits);
    lock.lock();
    if (is_abandoned) break;
  }
  return std::move(question->answer);
}

// Sleeps until `end`. Returns false if the caller is interrupted.
bool sleep_until(TimePoint end, const NameLookupLimits& limits) {
  for (TimePoint now = Clock::now(); now < end; now = Clock::now()) {
    std::this_thread::sleep_until(std::min(end, after(now, kPollS)));
    if (is_interrupted(limits)) return false;
  }
  return true;
}

ReadError error_of(const std::optional<Answer>& answer) {
  const ErrorCode code = answer ? error_of_lookup(answer->code) : ErrorCode::kResolve;
  const char* why = answer ? gai_strerror(answer->code) : "no name server answered in time";
  return error_of(code, std::string("the server's name cannot be resolved: ") + why);
}

}  // namespace

void ask_for_addresses(const std::string& host,
                       std::function<void(const std::vector<std::string>&)> take_answer) {
  try {
    start_engine_thread("name", 0, [host, take_answer = std::move(take_answer)] {
      take_answer(ask_resolver(host).addresses);
    }).detach();
  } catch (const std::system_error&) {
  }
}

std::variant<std::vector<std::string>, ReadError> addresses_of(const std::string& host,
                                                               const NameLookupLimits& limits) {
  const TimePoint started = Clock::now();
  const TimePoint deadline = after(started, limits.timeout_s);
  std::mt19937_64 random{std::random_device{}()};
  for (int attempts = 1;; ++attempts) {
    std::optional<Answer> answer = ask_until(host, deadline, limits);
    if (answer && answer->code == 0) return std::move(answer->addresses);
    ReadError error = error_of(answer);
    error.attempts = attempts;
    error.elapsed_s = seconds_between(started, Clock::now());
    const AttemptHistory history{.attempts = attempts, .elapsed_s = error.elapsed_s};
    if (!answer || !is_worth_another_attempt(error, history, limits.retry)) return error;
    const double drawn = std::uniform_real_distribution<double>(0, 1)(random);
    const TimePoint next = after(Clock::now(), retry_delay_s(error, attempts, limits.retry, drawn));
    if (next >= deadline || !sleep_until(next, limits)) return error;
  }
}

}  // namespace streamer
