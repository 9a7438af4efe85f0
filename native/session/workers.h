// The threads of one load: readers for each kind of source, and copiers for each device.
//
// The number of threads is limited by the system's memory, descriptors and threads. The started
// threads do the work of all. If none can be started, the load fails. A thread that throws ends the
// load, not the process.
//
// On a machine with several NUMA nodes, each thread stays on one node. A copier stays on the node
// of its device. A reader stays on the node of all devices if they share one, else on the node
// where it started.
#pragma once

#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/numa_nodes.h"
#include "gpu/device_copiers.h"
#include "http/reactor.h"
#include "nfs/reactor.h"
#include "schedule/scheduler.h"
#include "session/file_threads.h"
#include "session/session_options.h"
#include "session/sources.h"

namespace streamer {

class Workers {
 public:
  // All arguments must outlive the workers.
  Workers(const SessionOptions& options, const Sources& sources, const DeviceCopiers& copiers,
          Scheduler& scheduler)
      : options_(options),
        sources_(sources),
        copiers_(copiers),
        scheduler_(scheduler),
        numa_nodes_(read_numa_nodes(options.system_root)),
        hedge_budget_(options.hedge_percent) {}

  void start_copiers();
  // Starts the readers. `wanted_bytes` is indexed by source. `fills_own_memory`: all bytes go to
  // the engine's own memory.
  void start_readers(const std::vector<std::uint64_t>& wanted_bytes, bool fills_own_memory);

  // Waits until all threads have ended. They end when the scheduler and the copiers are stopped.
  void join();
  // Frees the blocks of cancelled requests, which hold pinned slots, and closes files that were not
  // read to their ends. Call this after join(), when the scheduler has no wakers any more.
  void release();

  // May be called while the workers run.
  const HttpCounters& http_counters() const { return http_counters_; }
  // See DeviceFileReads::refusal().
  int gpudirect_refusal() const { return file_threads_ ? file_threads_->gpudirect_refusal() : 0; }

 private:
  void start_http();
  void start_nfs();
  void start_files(const std::vector<std::uint64_t>& wanted_bytes, bool fills_own_memory);
  template <typename Reactor, typename Make>
  void make_reactors(Lane lane, std::vector<std::unique_ptr<Reactor>>& reactors, unsigned count,
                     Make make);
  template <typename Work>
  bool start_thread(const char* role, unsigned index, std::optional<unsigned> node, Work work);

  const SessionOptions& options_;
  const Sources& sources_;
  const DeviceCopiers& copiers_;
  Scheduler& scheduler_;
  const NumaNodes numa_nodes_;
  std::optional<unsigned> readers_node_;  // empty: each reader stays where it started
  HttpCounters http_counters_;
  HedgeBudget hedge_budget_;
  std::vector<std::unique_ptr<HttpReactor>> http_reactors_;
  std::vector<std::unique_ptr<NfsReactor>> nfs_reactors_;
  std::optional<FileThreads> file_threads_;
  std::vector<std::thread> threads_;
};

}  // namespace streamer
