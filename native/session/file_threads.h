// The work of the threads that read mounted files, for one load.
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
  // `files` is indexed by source, and null for other kinds. All arguments must outlive this object.
  FileThreads(Scheduler& scheduler, const std::vector<std::unique_ptr<FileReader>>& files,
              const DeviceCopiers& copiers)
      : scheduler_(scheduler), files_(files), copiers_(copiers) {}

  // Makes files that are read past the page cache go straight to their devices, if there are such
  // files and the library is available (see CudaRuntime::gpudirect). Call this before start().
  void use_gpudirect(bool may_copy);

  // Sets the number of threads that will call run(), and the wanted bytes of each file, by source.
  // `fills_own_memory`: all bytes go to the engine's own memory.
  void start(unsigned threads, const std::vector<std::uint64_t>& wanted_bytes,
             bool fills_own_memory);
  // Records that some threads could not be started.
  void remove(unsigned threads) { readers_.remove(threads); }

  // See DeviceFileReads::refusal().
  int gpudirect_refusal() const { return device_reads_ ? device_reads_->refusal() : 0; }

  // Reads block by block until there are no more. Ends earlier if there are fewer descriptors than
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
