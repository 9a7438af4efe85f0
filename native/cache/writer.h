// The one thread of a process that writes to caches, and the buffers on their way to it.
//
// Guarantees: offer() does not wait, unless `may_wait` is set: if all buffers are in use, the bytes
// are skipped. A load ends without waiting for its writes, which continue in the background. After
// a moment without work, the thread ends and the buffers are freed.
//
// Thread-safe. A child after fork() has its own writer, without the parent's pending writes.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cache/entry.h"
#include "plan/plan.h"

namespace streamer {

class CacheWriter {
 public:
  static CacheWriter& of_process();

  // Copies the bytes of items in the block, without the gaps between them. With `may_wait`, waits
  // for a buffer. Returns false if all buffers are in use, or the system gives no memory or thread.
  // Items that are offered with `is_confirmed` false are in the cache only after confirm().
  bool offer(const std::shared_ptr<CacheEntry>& entry, const Block& block, bool may_wait,
             bool is_confirmed = true);
  // Confirms a range of this CRC32C, after everything that was offered earlier is written.
  void confirm(const std::shared_ptr<CacheEntry>& entry, std::uint64_t begin, std::uint64_t end,
               std::uint64_t crc);
  // Forgets a range, after everything that was offered earlier is written.
  void forget(const std::shared_ptr<CacheEntry>& entry, std::uint64_t begin, std::uint64_t end);
  // Waits until everything is written. Returns false if that takes longer than the time-out.
  bool wait_until_idle(double timeout_s);

 private:
  struct Buffer {
    std::unique_ptr<std::byte[]> bytes;
    std::size_t capacity = 0;
  };
  // Consecutive bytes of one object, in pieces that end where items end.
  struct Run {
    std::uint64_t begin = 0;
    std::size_t offset = 0;  // position in the buffer
    std::vector<std::uint64_t> piece_bytes;
  };
  enum class Task { kWrite, kWriteUnconfirmed, kConfirm, kForget };
  struct Job {
    std::shared_ptr<CacheEntry> entry;
    Task task = Task::kWrite;
    Buffer buffer = {};
    std::vector<Run> runs = {};
    std::uint64_t begin = 0, end = 0;  // the range to confirm or to forget
    std::uint64_t crc = 0;             // of the range to confirm
  };

  CacheWriter() = default;

  bool take_buffer(std::size_t bytes, bool may_wait, Buffer& buffer);
  void give_back(Buffer buffer);
  static std::vector<Run> copy_items(const Block& block, std::byte* to);
  bool submit(Job job);
  void run();
  static void write(const Job& job);

  const pid_t owner_ = getpid();
  std::mutex mutex_;  // guards everything below
  std::condition_variable has_job_;
  std::condition_variable has_buffer_;
  std::condition_variable is_idle_;
  std::deque<Job> jobs_;
  std::vector<Buffer> free_;
  std::size_t lent_bytes_ = 0;  // bytes of buffers that are being filled or written
  bool is_busy_ = false;
  bool is_running_ = false;
};

}  // namespace streamer
