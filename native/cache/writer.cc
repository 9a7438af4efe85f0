#include "cache/writer.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <new>

#include "base/clock.h"
#include "base/engine_thread.h"

namespace streamer {
namespace {

// A load delivers this much in a tenth of a second or less, so a short pause of the disk loses
// nothing.
constexpr std::size_t kMostBytes = std::size_t{128} << 20;
// The thread ends after this time without work. It is longer than the pause between two loads, or
// between two tensors that a caller reads one by one.
constexpr double kIdleS = 0.2;
// If no buffer becomes free for this time, the disk has failed.
constexpr double kLongestWaitS = 30;
// Readers and the consumer come first if processors are short.
constexpr int kNiceness = 10;

}  // namespace

// Never freed: when the process ends, the writer's thread may still wait for a disk that hangs.
CacheWriter& CacheWriter::of_process() {
  static std::atomic<CacheWriter*> writer = new CacheWriter;
  CacheWriter* current = writer;
  if (current->owner_ != getpid()) {
    // A forked child cannot use the thread and locks of its parent.
    auto* own = new CacheWriter;
    if (!writer.compare_exchange_strong(current, own)) delete own;
  }
  return *writer;
}

bool CacheWriter::offer(const std::shared_ptr<CacheEntry>& entry, const Block& block, bool may_wait,
                        bool is_confirmed) {
  const std::uint64_t wanted = block.wanted_bytes();
  if (wanted == 0) return true;
  Buffer buffer;
  try {
    if (!take_buffer(wanted, may_wait, buffer)) return false;
    std::vector<Run> runs = copy_items(block, buffer.bytes.get());
    const Task task = is_confirmed ? Task::kWrite : Task::kWriteUnconfirmed;
    return submit({entry, task, std::move(buffer), std::move(runs)});
  } catch (const std::bad_alloc&) {
    if (buffer.bytes) give_back(std::move(buffer));
    return false;
  }
}

void CacheWriter::forget(const std::shared_ptr<CacheEntry>& entry, std::uint64_t begin,
                         std::uint64_t end) {
  submit({.entry = entry, .task = Task::kForget, .begin = begin, .end = end});
}

void CacheWriter::confirm(const std::shared_ptr<CacheEntry>& entry, std::uint64_t begin,
                          std::uint64_t end, std::uint64_t crc) {
  submit({.entry = entry, .task = Task::kConfirm, .begin = begin, .end = end, .crc = crc});
}

bool CacheWriter::take_buffer(std::size_t bytes, bool may_wait, Buffer& buffer) {
  const auto fits = [&] { return lent_bytes_ == 0 || lent_bytes_ + bytes <= kMostBytes; };
  {
    std::unique_lock lock(mutex_);
    if (may_wait) has_buffer_.wait_for(lock, Seconds(kLongestWaitS), fits);
    if (!fits()) return false;
    for (Buffer& free : free_) {
      if (free.capacity < bytes) continue;
      std::swap(buffer, free);
      std::swap(free, free_.back());
      free_.pop_back();
      break;
    }
    // All free buffers are too small: a larger buffer replaces one of them.
    if (!buffer.bytes && !free_.empty()) free_.pop_back();
    lent_bytes_ += std::max(bytes, buffer.capacity);
  }
  if (!buffer.bytes) {
    try {
      buffer = {std::make_unique_for_overwrite<std::byte[]>(bytes), bytes};
    } catch (const std::bad_alloc&) {
      const std::lock_guard lock(mutex_);
      lent_bytes_ -= bytes;
      throw;
    }
  }
  return true;
}

void CacheWriter::give_back(Buffer buffer) {
  const std::lock_guard lock(mutex_);
  lent_bytes_ -= buffer.capacity;
  free_.push_back(std::move(buffer));
  has_buffer_.notify_all();
}

std::vector<CacheWriter::Run> CacheWriter::copy_items(const Block& block, std::byte* to) {
  std::vector<Run> runs;
  std::uint64_t position = block.begin, run_end = UINT64_MAX;
  std::size_t offset = 0;
  for (const Segment& destination : block.destinations) {
    if (destination.item != Segment::kNoItem && destination.size > 0) {
      std::memcpy(to + offset, block.read_bytes(destination, position), destination.size);
      if (position != run_end) runs.push_back({position, offset, {}});
      runs.back().piece_bytes.push_back(destination.size);
      offset += destination.size;
      run_end = position + destination.size;
    }
    position += destination.size;
  }
  return runs;
}

bool CacheWriter::submit(Job job) {
  const std::lock_guard lock(mutex_);
  const std::size_t lent = job.buffer.capacity;
  try {
    if (!is_running_) start_engine_thread("cache", 0, [this] { run(); }).detach();
    is_running_ = true;
    jobs_.push_back(std::move(job));
  } catch (const std::exception&) {  // the system gives no thread or no memory
    lent_bytes_ -= lent;
    return false;
  }
  has_job_.notify_one();
  return true;
}

void CacheWriter::run() {
  setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kNiceness);
  std::unique_lock lock(mutex_);
  while (true) {
    if (!has_job_.wait_for(lock, Seconds(kIdleS), [this] { return !jobs_.empty(); })) break;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    is_busy_ = true;
    lock.unlock();
    write(job);
    job.entry.reset();  // not under the lock, because this may close the entry's files
    if (job.buffer.bytes) give_back(std::move(job.buffer));
    lock.lock();
    is_busy_ = false;
    if (jobs_.empty()) is_idle_.notify_all();
  }
  free_.clear();
  is_running_ = false;
}

void CacheWriter::write(const Job& job) {
  try {
    if (job.task == Task::kForget) job.entry->forget(job.begin, job.end);
    if (job.task == Task::kConfirm) job.entry->confirm(job.begin, job.end, job.crc);
    for (const Run& run : job.runs) {
      std::size_t bytes = 0;
      for (const std::uint64_t piece : run.piece_bytes) bytes += piece;
      job.entry->write(run.begin, {job.buffer.bytes.get() + run.offset, bytes}, run.piece_bytes,
                       job.task == Task::kWrite);
    }
  } catch (const std::bad_alloc&) {  // the bytes of this job are then missing from the cache
    job.entry->note_skipped(job.buffer.capacity);
  }
}

bool CacheWriter::wait_until_idle(double timeout_s) {
  std::unique_lock lock(mutex_);
  return is_idle_.wait_for(lock, Seconds(timeout_s), [this] { return jobs_.empty() && !is_busy_; });
}

}  // namespace streamer
