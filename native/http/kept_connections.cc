#include "http/kept_connections.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <iterator>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "base/broken_pipe.h"
#include "base/descriptors.h"
#include "base/engine_thread.h"

namespace streamer {
namespace {

// The time between two checks whether a server makes other requests wait.
constexpr std::chrono::seconds kCheckPeriod{1};

}  // namespace

MultiHandle new_multi() {
  MultiHandle multi(curl_multi_init());
  if (!multi) throw std::runtime_error("libcurl cannot create a multi handle");
  return multi;
}

// Never destroyed, because a load may end after static objects are destroyed. The connections are
// closed at exit nevertheless: OpenSSL was initialized earlier, so its exit handler runs after the
// handler below.
KeptConnections& KeptConnections::of_process() {
  static std::atomic<KeptConnections*> kept = new KeptConnections;
  static const bool is_ready = [] {
    pthread_atfork(nullptr, nullptr, [] { kept = new KeptConnections; });
    std::atexit([] { kept.load()->release(); });
    return true;
  }();
  (void)is_ready;
  return *kept;
}

KeptConnections::~KeptConnections() {
  release();
  std::unique_lock lock(mutex_);
  is_changed_.wait(lock, [this] { return !has_thread_; });
}

MultiHandle KeptConnections::take(const Endpoint& server) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(kept_.rbegin(), kept_.rend(), [&server](const Kept& kept) {
      return kept.server.get() == &server;
    });
    if (found != kept_.rend()) {
      MultiHandle multi = std::move(found->multi);
      kept_.erase(std::next(found).base());
      return multi;
    }
  }
  return new_multi();
}

void KeptConnections::keep(MultiHandle multi, std::shared_ptr<Endpoint> server) {
  if (are_most_descriptors_open()) return;  // the program needs descriptors itself
  Kept oldest;                              // destroyed, and so closed, after the lock is released
  const std::lock_guard lock(mutex_);
  if (kept_.size() == kMostHandles) {
    oldest = std::move(kept_.front());
    kept_.erase(kept_.begin());
  }
  kept_.push_back({std::move(multi), std::move(server), Clock::now()});
  start_closing();
}

// If the system starts no thread, the connections stay open until the next call, or until the exit.
void KeptConnections::start_closing() {
  if (has_thread_) return;
  try {
    start_engine_thread("idle", 0, [this] { close_idle_ones(); }).detach();
    has_thread_ = true;
  } catch (const std::system_error&) {
  }
}

void KeptConnections::close_idle_ones() {
  std::unique_lock lock(mutex_);
  while (!kept_.empty()) {
    const TimePoint now = Clock::now();
    std::vector<Kept> due = take_out([this, now](const Kept& kept) {
      return now >= kept.since + idle_ || kept.server->waiting->are_some(now);
    });
    if (due.empty()) {
      is_changed_.wait_until(lock, std::min(kept_.front().since + idle_, now + kCheckPeriod));
      continue;
    }
    ++closing_;
    lock.unlock();
    due.clear();
    lock.lock();
    --closing_;
    is_changed_.notify_all();
  }
  has_thread_ = false;
  is_changed_.notify_all();  // under the lock, because `this` may be destroyed after it
}

std::vector<KeptConnections::Kept> KeptConnections::take_out(
    const std::function<bool(const Kept&)>& is_meant) {
  const auto first = std::stable_partition(
      kept_.begin(), kept_.end(), [&is_meant](const Kept& kept) { return !is_meant(kept); });
  std::vector<Kept> taken(std::make_move_iterator(first), std::make_move_iterator(kept_.end()));
  kept_.erase(first, kept_.end());
  return taken;
}

void KeptConnections::close(const Endpoint& server) {
  const BrokenPipesIgnored ignored;  // closing a TLS connection writes to its socket
  std::vector<Kept> closed;          // destroyed, and so closed, after the lock is released
  const std::lock_guard lock(mutex_);
  closed = take_out([&server](const Kept& kept) { return kept.server.get() == &server; });
}

std::size_t KeptConnections::release() {
  std::vector<Kept> released;
  {
    std::unique_lock lock(mutex_);
    released.swap(kept_);
    is_changed_.notify_all();
    is_changed_.wait(lock, [this] { return closing_ == 0; });
  }
  const BrokenPipesIgnored ignored;  // closing a TLS connection writes to its socket
  const std::size_t count = released.size();
  released.clear();
  return count;
}

std::size_t KeptConnections::kept() {
  const std::lock_guard lock(mutex_);
  return kept_.size();
}

}  // namespace streamer
