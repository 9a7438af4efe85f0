// The threads of one load: those that read, for each kind of source, and those that copy to
// devices.
//
// As many are started as the system has memory, descriptors and threads for; those there are do the
// work of all, and where there is none the load fails. A thread that throws ends the load, not the
// process.
//
// On a machine of several NUMA nodes each thread stays on one: a copier on that of its device, a
// reader on that of all devices if they share one, and else on the node where it first ran.
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
  // All must outlive the workers.
  Workers(const SessionOptions& options, const Sources& sources, const DeviceCopiers& copiers,
          Scheduler& scheduler)
      : options_(options),
        sources_(sources),
        copiers_(copiers),
        scheduler_(scheduler),
        numa_nodes_(read_numa_nodes(options.system_root)),
        hedge_budget_(options.hedge_percent) {}

  void start_copiers();
  // With the bytes that are wanted of each source, and whether all go to memory of the engine's
  // own.
  void start_readers(const std::vector<std::uint64_t>& wanted_bytes, bool fills_own_memory);

  // Waits until all have ended; they do when the scheduler and the copiers are stopped.
  void join();
  // Frees the blocks of requests that were cancelled, which hold pinned slots, and closes files
  // that were not read to their ends. After join(), when the scheduler has no wakers any more.
  void release();

  // While they work, too.
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
  std::optional<unsigned> readers_node_;  // none: each stays where it first runs
  HttpCounters http_counters_;
  HedgeBudget hedge_budget_;
  std::vector<std::unique_ptr<HttpReactor>> http_reactors_;
  std::vector<std::unique_ptr<NfsReactor>> nfs_reactors_;
  std::optional<FileThreads> file_threads_;
  std::vector<std::thread> threads_;
};

}  // namespace streamer
