#include "session/file_threads.h"

#include <cerrno>
#include <utility>

#include "base/descriptors.h"
#include "cuda/runtime.h"

namespace streamer {
namespace {

// Pause of a block until another reader frees a descriptor.
constexpr double kDescriptorWaitS = 0.02;

}  // namespace

void FileThreads::use_gpudirect(bool may_copy) {
  std::vector<std::uint32_t> direct;
  for (std::uint32_t source = 0; source < files_.size(); ++source) {
    if (files_[source] && files_[source]->is_direct()) direct.push_back(source);
  }
  if (direct.empty() || copiers_.by_device().empty()) return;
  auto library = CudaRuntime::instance().gpudirect(may_copy).library;
  if (!library) return;
  device_reads_.emplace(std::move(library));
  for (const std::uint32_t source : direct) scheduler_.set_gpudirect(source, true);
}

void FileThreads::start(unsigned threads, const std::vector<std::uint64_t>& wanted_bytes,
                        bool fills_own_memory) {
  for (std::size_t i = 0; i < files_.size(); ++i) {
    if (files_[i]) files_[i]->expect(wanted_bytes[i], fills_own_memory);
  }
  readers_.start(threads);
}

void FileThreads::run() {
  while (auto block = scheduler_.take(Lane::kFile)) {
    const TimePoint started = Clock::now();
    auto error = read(*block);
    if (TraceLog* const trace = scheduler_.trace()) {
      trace->add({.category = "read",
                  .source = block->source,
                  .offset = block->begin,
                  .bytes = block->received,
                  .failure = error ? error->detail : ""},
                 started);
    }
    if (error && means_no_descriptor(error->os_error) && readers_.leave_to_others()) {
      scheduler_.requeue(Lane::kFile, std::move(*block), after(Clock::now(), kDescriptorWaitS));
      return;
    }
    settle(std::move(*block), std::move(error), started);
  }
}

std::optional<ReadError> FileThreads::read(Block& block) {
  const auto is_cancelled = [this] { return scheduler_.is_stopped(); };
  FileReader& file = *files_[block.source];
  if (!is_read_by_gpudirect(block)) return file.read(block, is_cancelled);
  return device_reads_->read(file, block, *copiers_.by_device().at(block.device), is_cancelled);
}

void FileThreads::settle(Block block, std::optional<ReadError> error, TimePoint started) {
  if (error && error->os_error == ENOTSUP && is_read_by_gpudirect(block)) {
    scheduler_.set_gpudirect(block.source, false);
    block.received = 0;
    scheduler_.requeue(Lane::kFile, std::move(block), Clock::now());
  } else if (error && scheduler_.cached().holds(block.source)) {
    scheduler_.finish_damaged(Lane::kFile, std::move(block));
  } else if (error) {
    error->source = block.source;
    error->begin = block.begin;
    error->end = block.end;
    error->elapsed_s = seconds_between(started, Clock::now());
    scheduler_.fail(std::move(*error));
  } else if (block.received == block.size()) {
    scheduler_.finish(Lane::kFile, std::move(block));
  }
}

}  // namespace streamer
