#include "runai/streamers.h"

#include <unistd.h>

#include <atomic>

namespace streamer::runai {
namespace {

std::atomic<uint64_t> last_number = 0;

}  // namespace

Streamers& Streamers::instance() {
  static std::atomic<Streamers*> current = nullptr;
  const pid_t process = getpid();
  Streamers* known = current.load();
  while (known == nullptr || known->process_ != process) {
    auto* const fresh = new Streamers(process);
    if (current.compare_exchange_strong(known, fresh)) return *fresh;
    delete fresh;
  }
  return *known;
}

std::shared_ptr<Streamer> Streamers::add() {
  auto streamer = std::make_shared<Streamer>();
  streamer->number = ++last_number;
  const std::scoped_lock locked(mutex_);
  streamers_.emplace(streamer->number, streamer);
  return streamer;
}

std::shared_ptr<Streamer> Streamers::find(uint64_t number) {
  const std::scoped_lock locked(mutex_);
  const auto found = streamers_.find(number);
  return found == streamers_.end() ? nullptr : found->second;
}

std::shared_ptr<Streamer> Streamers::remove(uint64_t number) {
  const std::scoped_lock locked(mutex_);
  const auto node = streamers_.extract(number);
  return node.empty() ? nullptr : node.mapped();
}

bool Streamers::has_existed(uint64_t number) { return number != 0 && number <= last_number; }

}  // namespace streamer::runai
