#include "session/session.h"

#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include "cache/tap.h"
#include "http/request.h"
#include "io/huge_pages.h"
#include "session/sources.h"
#include "session/workers.h"

namespace streamer {
namespace {

std::vector<MemoryRange> targets_on_host(const Plan& plan) {
  std::vector<MemoryRange> targets;
  for (const Item& item : plan.items) {
    const bool is_on_host = item.target != nullptr && item.device == kHost;
    if (is_on_host) targets.push_back({item.target, item.size()});
  }
  return targets;
}

// The minimum for a load with a limit of bytes per second, in which a block may take up a quarter
// of a second.
constexpr std::uint64_t kLeastBlockBytes = 64 << 10;
// Additional slots, because some are filled while others are copied.
constexpr std::uint64_t kLeastSlots = 4;
// Requests in flight over a network before the first responses arrive.
constexpr unsigned kFirstRequests = 12;

}  // namespace

// Workers and sources outlive the scheduler, because its wakers point to reactors. Threads are
// joined before either is destroyed.
struct Session::State {
  explicit State(SessionOptions all) : options(std::move(all)), trace(options.trace_events) {}

  const SessionOptions options;
  const Clock::Watched watched;
  Sources sources;
  CacheTap tap;
  TraceLog trace;
  std::optional<Workers> workers;
  std::unique_ptr<Scheduler> scheduler;
  DeviceCopiers copiers;
  // The members below are set by start().
  std::uint64_t piece_bytes = 1;  // of what is encrypted or hashed; a block holds whole pieces
  std::vector<std::shared_ptr<Endpoint>> endpoints;  // by source
  std::optional<OutageWatch> outages;
  std::optional<PythonLoans> python;
  std::mutex join_mutex;  // because several threads may call close()

  Sources& sources_before_start() {
    if (scheduler) throw std::logic_error("objects must be added before start()");
    return sources;
  }

  // HTTP blocks follow the servers' best request size, and all blocks fit into the slots of
  // devices.
  SchedulerOptions scheduler_options(bool has_devices) const {
    SchedulerOptions chosen = options.scheduler;
    chosen.http_block_bytes = [this](std::uint32_t source) { return request_bytes(source); };
    if (outages) chosen.server_of_source = outages->server_of_source();
    if (chosen.max_bytes_per_second > 0) {
      const std::uint64_t most = std::max(kLeastBlockBytes, chosen.max_bytes_per_second / 4);
      for (std::uint64_t& bytes : chosen.block_bytes) bytes = std::min(bytes, most);
    }
    if (!has_devices) return chosen;
    for (std::uint64_t& bytes : chosen.block_bytes) {
      bytes = std::clamp<std::uint64_t>(options.pinned_bytes / kLeastSlots, 1, bytes);
    }
    return chosen;
  }

  // Returns an upper limit; the scheduler has a limit of its own.
  std::uint64_t request_bytes(std::uint32_t source) const {
    HttpObject& object = *sources.objects()[source];
    const std::optional<AnswerChecksum>& checksum = object.answer_checksum();
    const std::uint64_t most = checksum ? checksum->max_bytes : UINT64_MAX;
    if (!options.http_blocks_follow_server) return most;
    return std::min(most, object.target()->endpoint->advice().bytes);
  }

  DeviceCopiers::RingSize ring_size() const {
    const SchedulerOptions chosen = scheduler_options(true);
    std::uint64_t largest = 0;
    for (const Lane lane : sources.lanes()) {
      largest = std::max(largest, chosen.block_bytes[static_cast<std::size_t>(lane)]);
    }
    largest = std::max(largest, piece_bytes);
    const unsigned readers = sources.has(Lane::kFile) ? options.file_threads : kFirstRequests;
    return {.pinned_bytes = options.pinned_bytes,
            .slot_bytes = largest,
            .first_slots = readers + kLeastSlots};
  }
};

Session::Session(SessionOptions options)
    : owner_(getpid()), state_(std::make_unique<State>(std::move(options))) {
  start_libcurl();
}

Session::~Session() {
  if (is_forked()) {
    (void)state_.release();  // its threads do not exist in this process: a join would never end
    return;
  }
  close();
}

bool Session::is_forked() const { return getpid() != owner_; }

Session::State& Session::state() const {
  if (is_forked()) throw ForkedError();
  return *state_;
}

void Session::add_file(std::string path, std::uint64_t size_bytes, std::string version,
                       FileOptions how) {
  state().sources_before_start().add_file(std::make_unique<FileReader>(
      std::move(path), size_bytes, std::move(version), std::move(how)));
}

void Session::add_http(HttpTarget target, std::uint64_t size_bytes, std::string version,
                       std::string version_header, bool can_refresh) {
  state().sources_before_start().add_http(std::make_unique<HttpObject>(
      std::move(target), size_bytes, std::move(version), std::move(version_header), can_refresh));
}

void Session::compare_answers(std::uint32_t source, AnswerChecksum checksum) {
  state().sources_before_start().objects().at(source)->compare_answers(std::move(checksum));
}

void Session::add_nfs(const std::string& url, std::uint64_t size_bytes, std::string version,
                      const std::function<bool()>& is_interrupted) {
  const SessionOptions& options = state().options;
  const NameLookupLimits limits{.timeout_s = options.timeouts.connect_timeout_s,
                                .retry = options.retry,
                                .is_interrupted = is_interrupted};
  state().sources_before_start().add_nfs(url, size_bytes, std::move(version), limits);
}

void Session::add_python(const std::string& server) {
  state().sources_before_start().add_python(server);
}

void Session::write_to_cache(std::uint32_t source, std::shared_ptr<CacheEntry> entry,
                             bool may_wait) {
  state().sources_before_start();
  state().tap.add(source, std::move(entry), may_wait);
}

void Session::start(Plan plan, const ConsumerStreams& streams) {
  State& state = this->state();
  if (state.scheduler) throw std::logic_error("a session can be started only once");
  const std::vector<Lane>& lanes = state.sources.lanes();
  check_plan(plan, static_cast<std::uint32_t>(lanes.size()));
  const std::vector<MemoryRange> callers = targets_on_host(plan);
  advise_huge_pages(callers);
  for (const std::uint32_t peer : plan.peers) {
    const auto& object = state.sources.objects()[peer];
    if (!object) throw std::invalid_argument("a peer is read over HTTP");
    object->watch_progress();
  }
  state.endpoints = state.sources.endpoints();
  state.outages.emplace(state.endpoints);
  const bool has_work = !plan.spans.empty() || !plan.held_back.empty();
  const std::vector<std::uint64_t> wanted_of_sources =
      wanted_bytes(plan, static_cast<std::uint32_t>(lanes.size()));
  const DeviceCopiers::Wanted wanted(plan);
  state.piece_bytes = std::max(plan.seals.piece_bytes(), plan.digests.piece_bytes());
  state.scheduler = std::make_unique<Scheduler>(std::move(plan), lanes,
                                                state.scheduler_options(!wanted.targets.empty()));
  if (!state.tap.is_empty()) state.scheduler->set_tap(&state.tap);
  if (state.options.trace_events > 0) state.scheduler->set_trace(&state.trace);
  state.python.emplace(*state.scheduler, state.endpoints, state.options.retry);
  if (const auto& error = state.sources.lookup_error()) {
    state.scheduler->fail(*error);
    return;
  }
  state.workers.emplace(state.options, state.sources, state.copiers, *state.scheduler);
  try {
    state.copiers.start(wanted, *state.scheduler, state.ring_size(), streams);
    state.workers->start_copiers();
  } catch (const DeviceFailure& failure) {
    state.scheduler->fail(failure.error());
    return;
  }
  if (has_work) state.workers->start_readers(wanted_of_sources, callers.empty());
}

Delivery Session::wait(double timeout_s, std::uint64_t enough_bytes) {
  return state().scheduler->wait(timeout_s, enough_bytes);
}

std::vector<Memory> Session::take(const std::vector<std::uint32_t>& items) {
  return state().scheduler->take_items(items);
}

void Session::set_memory_limit(std::uint64_t limit_bytes) {
  state().scheduler->set_memory_limit(limit_bytes);
}

std::vector<Piece> Session::digest_pieces(std::uint32_t item) {
  return state().scheduler->digest_pieces(item);
}

Hash Session::hash(std::uint32_t item) { return state().scheduler->hash(item); }

void Session::renew(std::uint32_t source, HttpTarget target) {
  state().sources.objects().at(source)->renew(std::move(target), unix_time_s());
}

void Session::provide(std::int32_t device, CudaStreamHandle stream,
                      const std::vector<std::uint32_t>& items,
                      const std::vector<std::byte*>& targets) {
  State& state = this->state();
  try {
    state.copiers.provide(*state.scheduler, device, stream, items, targets);
  } catch (const DeviceFailure& failure) {
    state.scheduler->fail(failure.error());
  }
}

std::vector<std::uint32_t> Session::next_to_allocate() {
  return state().scheduler->next_to_allocate();
}

bool Session::compares_answers(std::uint32_t source) {
  const auto& object = state().sources.objects().at(source);
  return object && object->compares_answers();
}

std::string Session::version(std::uint32_t source) { return state().sources.version(source); }

PythonLoans& Session::python() { return *state().python; }

void Session::fail(ReadError error) { state().scheduler->fail(std::move(error)); }

std::map<std::uint32_t, std::uint64_t> Session::peer_bytes() {
  State& state = this->state();
  return state.scheduler ? state.scheduler->peer_bytes() : std::map<std::uint32_t, std::uint64_t>{};
}

std::vector<std::uint64_t> Session::received_bytes() {
  return state().sources.received_bytes(state().scheduler->landed_bytes());
}

void Session::release(const std::vector<ReleasedItem>& items) { state().scheduler->release(items); }

std::vector<std::uint32_t> Session::lost_peers() { return state().scheduler->lost_peers(); }

void Session::win_back(std::uint32_t source) { state().scheduler->win_back(source); }

SessionStats Session::stats() {
  State& state = this->state();
  SessionStats stats;
  if (state.scheduler) stats.scheduler = state.scheduler->stats();
  stats.peak_pinned_bytes = state.copiers.peak_pinned_bytes();
  if (state.outages) stats.outages = state.outages->totals(Clock::now());
  if (!state.workers) return stats;
  const HttpCounters& http = state.workers->http_counters();
  stats.http_requests = http.requests;
  stats.credential_refreshes = http.refreshes;
  stats.hedges = http.hedges;
  stats.gpudirect_refusal = state.workers->gpudirect_refusal();
  return stats;
}

std::pair<std::vector<TraceEvent>, std::uint64_t> Session::take_trace() {
  return state().trace.take();
}

std::vector<OpenOutage> Session::outages() {
  const State& state = this->state();
  return state.outages ? state.outages->open(Clock::now()) : std::vector<OpenOutage>();
}

bool Session::has_abandoned_copies() const { return state().copiers.has_abandoned(); }

void Session::close() {
  if (is_forked()) return;
  if (state_->scheduler) state_->scheduler->stop();
  const std::lock_guard lock(state_->join_mutex);
  state_->copiers.stop();
  if (state_->workers) state_->workers->join();
  if (!state_->scheduler) return;
  state_->scheduler->release();
  state_->scheduler->remove_wakers();
  if (state_->workers) state_->workers->release();
}

}  // namespace streamer
