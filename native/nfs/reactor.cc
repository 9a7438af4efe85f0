#include "nfs/reactor.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "nfs/errors.h"
#include "nfs/mount.h"

namespace streamer {
namespace {

// Enough for 1 GB/s from a server at a distance of 16 ms; more would only spread the work over more
// memory at a time.
constexpr std::uint64_t kMostInFlightBytes = std::uint64_t{16} << 20;
constexpr int kDeadlineCheckMs = 100;
constexpr double kRoomPollS = 0.02;  // before a server without room is tried again
constexpr int kIdlePollMs = 1000;    // wake() ends it earlier

int make_wake_descriptor() {
  const int descriptor = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (descriptor < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  return descriptor;
}

}  // namespace

NfsReactor::NfsReactor(Scheduler& scheduler, const std::vector<std::unique_ptr<NfsObject>>& objects,
                       const Timeouts& timeouts, const RetryOptions& retry)
    : scheduler_(scheduler),
      objects_(objects),
      timeouts_(timeouts),
      retry_(retry),
      retries_(scheduler, Lane::kNfs, retry),
      wake_descriptor_(make_wake_descriptor()) {}

NfsReactor::~NfsReactor() { close(wake_descriptor_); }

void NfsReactor::wake() {
  const std::uint64_t one = 1;
  (void)!write(wake_descriptor_, &one, sizeof one);  // fails only if the reactor is already awake
}

void NfsReactor::run() {
  while (!scheduler_.is_stopped()) {
    start_blocks();
    if (is_lane_finished_ && in_flight_bytes_ == 0) {
      for (const auto& [name, mount] : mounts_) mount->close_files();
      break;
    }
    for (const auto& [name, mount] : mounts_) mount->advance();
    wait();
    collect();
  }
  mounts_.clear();  // on the thread that created them
}

void NfsReactor::start_blocks() {
  retry_at_.reset();
  while (in_flight_bytes_ < kMostInFlightBytes) {
    const TimePoint now = Clock::now();
    const auto admission = [this, now](std::uint32_t source, TimePoint first_started) {
      return retries_.closed_until(*objects_[source]->endpoint(), first_started, now);
    };
    TakeResult result = scheduler_.try_take(Lane::kNfs, now, admission);
    is_lane_finished_ = result.is_finished;
    retry_at_ = result.retry_at;
    if (!result.block) return;
    start(std::move(*result.block), now);
  }
}

void NfsReactor::start(Block block, TimePoint now) {
  NfsObject& object = *objects_[block.source];
  if (retries_.give_up_overdue(block, *object.endpoint(), now)) return;
  const auto ticket = object.endpoint()->try_start(now);
  if (!ticket) {  // another thread was faster
    scheduler_.requeue(Lane::kNfs, std::move(block), after(now, kRoomPollS));
    return;
  }
  in_flight_bytes_ += block.size();
  mount_for(object).start(std::move(block), *ticket, object, now);
}

NfsMount& NfsReactor::mount_for(const NfsObject& object) {
  std::unique_ptr<NfsMount>& mount = mounts_[NfsMount::name_of(object)];
  if (!mount) {
    const NfsTimeouts timeouts{timeouts_.connect_timeout_s, timeouts_.stall_timeout_s,
                               timeouts_.stall_bytes_per_s};
    mount = std::make_unique<NfsMount>(object, mounts_made_++, timeouts);
  }
  return *mount;
}

void NfsReactor::wait() {
  std::vector<pollfd> waiting{{wake_descriptor_, POLLIN, 0}};
  for (const auto& [name, mount] : mounts_) {
    NfsConnection& connection = mount->connection();
    waiting.push_back({connection.descriptor(), connection.events(), 0});
  }
  poll(waiting.data(), waiting.size(), poll_timeout_ms());
  if (waiting[0].revents != 0) {
    std::uint64_t count = 0;
    (void)!read(wake_descriptor_, &count, sizeof count);
  }
  const TimePoint now = Clock::now();
  auto next = waiting.begin() + 1;
  for (const auto& [name, mount] : mounts_) {
    if (next->revents != 0) mount->connection().service(next->revents);
    mount->connection().enforce_deadlines(now);
    ++next;
  }
}

void NfsReactor::collect() {
  const TimePoint now = Clock::now();
  for (auto entry = mounts_.begin(); entry != mounts_.end();) {
    entry->second->enforce_block_deadline(now, retry_.block_deadline_s);
    for (NfsMount::Outcome& outcome : entry->second->collect(now)) {
      settle(*outcome.transfer, std::move(outcome.error), outcome.was_given_up);
    }
    entry = entry->second->is_broken() ? mounts_.erase(entry) : std::next(entry);
  }
}

void NfsReactor::settle(NfsTransfer& transfer, std::optional<ReadError> error, bool was_given_up) {
  const TimePoint now = Clock::now();
  const OutageTicket ticket = transfer.ticket();
  Endpoint& endpoint = *objects_[transfer.source()]->endpoint();
  in_flight_bytes_ -= transfer.size();
  if (TraceLog* const trace = scheduler_.trace()) {
    trace->add({.category = "request",
                .source = transfer.source(),
                .offset = transfer.block().begin,
                .bytes = transfer.block().received,
                .attempt = transfer.block().attempts,
                .failure = error ? error->detail : "",
                .may_overlap = true},
               transfer.started());
  }
  if (was_given_up) {
    endpoint.cancel(ticket);
    scheduler_.requeue(Lane::kNfs, transfer.give_back(), now);
    return;
  }
  if (!error) {
    endpoint.finish_well(ticket, 0, false, now);
    scheduler_.finish(Lane::kNfs, transfer.take_block());
    return;
  }
  const bool is_of_outage = endpoint.finish_badly(ticket, *error, now);
  Block block = transfer.take_block();
  const bool is_first =
      block.attempts - block.attempts_in_outages < std::min(2, retry_.max_attempts);
  if (is_first && is_worth_reopening(*error)) {
    scheduler_.retry_at(Lane::kNfs, std::move(block), now);
  } else {
    retries_.try_again(std::move(block), std::move(*error), endpoint, is_of_outage);
  }
}

int NfsReactor::poll_timeout_ms() const {
  double timeout_s = (in_flight_bytes_ == 0 ? kIdlePollMs : kDeadlineCheckMs) / 1e3;
  if (retry_at_) timeout_s = std::min(timeout_s, seconds_between(Clock::now(), *retry_at_));
  return std::max(0, static_cast<int>(timeout_s * 1e3) + 1);
}

}  // namespace streamer
