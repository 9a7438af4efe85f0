// What the threads do that read mounted files, for one load.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/reader_count.h"
#include "gpu/device_copiers.h"
#include "gpu/device_file_reads.h"
#include "io/file_reader.h"
#include "schedule/scheduler.h"

namespace streamer {

class FileThreads {
 public:
  // `files` by source, null for others. All must outlive the lane.
  FileThreads(Scheduler& scheduler, const std::vector<std::unique_ptr<FileReader>>& files,
              const DeviceCopiers& copiers)
      : scheduler_(scheduler), files_(files), copiers_(copiers) {}

  // From here on files that are read past the page cache go straight to their devices, if there are
  // such and the library is there (see CudaRuntime::gpudirect). Before start().
  void use_gpudirect(bool may_copy);

  // How many threads will call run(), how many bytes of each file, by source, are wanted, and
  // whether all go to memory of the engine's own.
  void start(unsigned threads, const std::vector<std::uint64_t>& wanted_bytes,
             bool fills_own_memory);
  // Some could not be started.
  void remove(unsigned threads) { readers_.remove(threads); }

  // See DeviceFileReads::refusal().
  int gpudirect_refusal() const { return device_reads_ ? device_reads_->refusal() : 0; }

  // Reads block by block until there are no more, or until there are fewer descriptors than
  // threads.
  void run();

 private:
  std::optional<ReadError> read(Block& block);
  void settle(Block block, std::optional<ReadError> error, TimePoint started);

  Scheduler& scheduler_;
  const std::vector<std::unique_ptr<FileReader>>& files_;
  const DeviceCopiers& copiers_;
  std::optional<DeviceFileReads> device_reads_;
  ReaderCount readers_;
};

}  // namespace streamer
