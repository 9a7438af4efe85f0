#include "session/workers.h"

#include <cerrno>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#include "base/broken_pipe.h"
#include "base/descriptors.h"
#include "base/engine_thread.h"
#include "base/node_affinity.h"

namespace streamer {
namespace {

template <typename Work>
void run_guarded(Scheduler& scheduler, Work work) {
  try {
    work();
  } catch (const std::bad_alloc&) {
    scheduler.fail(error_of(ErrorCode::kOutOfMemory, "no memory for the engine"));
  } catch (const std::exception& failure) {
    scheduler.fail(error_of(ErrorCode::kIo, std::string("the engine failed: ") + failure.what()));
  }
}

}  // namespace

// Creates at most `count` reactors. If not even one can be created, the load fails.
template <typename Reactor, typename Make>
void Workers::make_reactors(Lane lane, std::vector<std::unique_ptr<Reactor>>& reactors,
                            unsigned count, Make make) {
  try {
    while (reactors.size() < count) {
      reactors.push_back(make());
      scheduler_.add_waker(lane, [reactor = reactors.back().get()] { reactor->wake(); });
    }
  } catch (const std::exception& failure) {
    if (!reactors.empty()) return;
    scheduler_.fail(error_of(ErrorCode::kIo, std::string("the engine: ") + failure.what(),
                             descriptor_shortage()));
  }
}

// Returns false if the system starts no further thread.
template <typename Work>
bool Workers::start_thread(const char* role, unsigned index, std::optional<unsigned> node,
                           Work work) {
  try {
    threads_.push_back(start_engine_thread(role, index, [this, node, work] {
      run_guarded(scheduler_, [&] {
        stay_on_one_node(numa_nodes_, node);  // before the thread touches any memory of its own
        work();
      });
    }));
  } catch (const std::system_error& failure) {
    if (index == 0) {  // otherwise no thread would read this lane
      scheduler_.fail(error_of(ErrorCode::kOutOfMemory,
                               std::string("the system gives no thread: ") + failure.what(),
                               failure.code().value()));
    }
    return false;
  }
  return true;
}

void Workers::start_copiers() {
  for (const auto& [device, copier] : copiers_.by_device()) {
    const auto number = static_cast<unsigned>(device);
    const auto node = numa_node_of_pci_device(options_.system_root, copier->device().pci_address());
    DeviceCopier* const its = copier.get();
    its->expect_prepared_slots();
    if (start_thread("pin", number, node, [its] { its->prepare_slots(); }) &&
        start_thread("gpu", number, node, [its] { its->run(); })) {
      continue;
    }
    scheduler_.fail(
        error_of(ErrorCode::kOutOfMemory, "the system gives no thread for a device", EAGAIN));
    return;
  }
}

void Workers::start_readers(const std::vector<std::uint64_t>& wanted_bytes, bool fills_own_memory) {
  readers_node_ = copiers_.common_numa_node(options_.system_root);
  if (sources_.has(Lane::kHttp)) start_http();
  if (sources_.has(Lane::kNfs)) start_nfs();
  if (sources_.has(Lane::kFile)) start_files(wanted_bytes, fills_own_memory);
}

void Workers::start_http() {
  make_reactors(Lane::kHttp, http_reactors_, options_.http_reactors, [this] {
    return std::make_unique<HttpReactor>(scheduler_, sources_.objects(), options_.timeouts,
                                         options_.retry, hedge_budget_, options_.http_in_flight,
                                         http_counters_);
  });
  const auto count = static_cast<unsigned>(http_reactors_.size());
  http_counters_.reactors.start(count);
  for (unsigned i = 0; i < count; ++i) {
    HttpReactor* const reactor = http_reactors_[i].get();
    if (start_thread("http", i, readers_node_, [reactor] { reactor->run(); })) continue;
    http_counters_.reactors.remove(count - i);
    return;
  }
}

void Workers::start_nfs() {
  make_reactors(Lane::kNfs, nfs_reactors_, options_.nfs_threads, [this] {
    return std::make_unique<NfsReactor>(scheduler_, sources_.nfs_files(), options_.timeouts,
                                        options_.retry);
  });
  for (unsigned i = 0; i < nfs_reactors_.size(); ++i) {
    NfsReactor* const reactor = nfs_reactors_[i].get();
    if (!start_thread("nfs", i, readers_node_, [reactor] { reactor->run(); })) return;
  }
}

void Workers::start_files(const std::vector<std::uint64_t>& wanted_bytes, bool fills_own_memory) {
  file_threads_.emplace(scheduler_, sources_.files(), copiers_);
  if (options_.gpudirect.value_or(true))
    file_threads_->use_gpudirect(options_.gpudirect.has_value());
  file_threads_->start(options_.file_threads, wanted_bytes, fills_own_memory);
  for (unsigned i = 0; i < options_.file_threads; ++i) {
    if (start_thread("file", i, readers_node_, [this] { file_threads_->run(); })) continue;
    file_threads_->remove(options_.file_threads - i);
    return;
  }
}

void Workers::join() {
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void Workers::release() {
  const BrokenPipesIgnored by_farewells;  // closing a TLS connection writes to it
  http_reactors_.clear();
  nfs_reactors_.clear();
  for (const auto& file : sources_.files()) {
    if (file) file->close();
  }
}

}  // namespace streamer
