// Shared by the raw readers: fresh huge-page memory, the queue of blocks, and the measurement of a
// run.
//
// Guarantees: memory is new to the process, aligned to 2 MiB and advised to use huge pages. Exactly
// one thread takes each block. Figures are those of the whole process, from the construction of
// `Measurement` to `Stop`. Anything unexpected ends the process with a message and status 2.
#ifndef STREAMER_BENCHMARKS_MEASURED_H_
#define STREAMER_BENCHMARKS_MEASURED_H_

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace bench {

inline constexpr size_t kHugePage = size_t{2} << 20;
inline constexpr size_t kSampleStride =
    65521;  // a prime near 64 KiB: 16 samples per MiB, so that a missing block is noticed

[[noreturn]] inline void Die(const std::string& message) {
  std::fprintf(stderr, "%s\n", message.c_str());
  std::_Exit(2);
}

// Parses a number that is all of a text: the end of an option or of `url=size`.
inline size_t ParseSize(const std::string& text) {
  char* end = nullptr;
  const unsigned long long value = std::strtoull(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0') Die("not a number: '" + text + "'");
  return value;
}

// Sets the number with the name of `option` to the value after the option.
using Numbers = std::map<std::string, size_t*>;
inline void SetNumber(const Numbers& numbers, const std::string& option, const std::string& text) {
  const auto found = numbers.find(option);
  if (found == numbers.end()) Die("unknown option " + option);
  *found->second = ParseSize(text);
}

// Owns an anonymous mapping whose usable part starts on a huge-page border.
class HugeBuffer {
 public:
  explicit HugeBuffer(size_t bytes)
      : size_((bytes + kHugePage - 1) / kHugePage * kHugePage), mapped_(size_ + kHugePage) {
    base_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base_ == MAP_FAILED) Die("mmap: " + std::string(std::strerror(errno)));
    const auto address = reinterpret_cast<uintptr_t>(base_);
    data_ = reinterpret_cast<char*>((address + kHugePage - 1) / kHugePage * kHugePage);
    madvise(data_, size_,
            MADV_HUGEPAGE);  // a hint: without effect, the run is slower, with more page faults
  }
  HugeBuffer(HugeBuffer&& other) noexcept
      : size_(other.size_),
        mapped_(other.mapped_),
        base_(std::exchange(other.base_, nullptr)),
        data_(other.data_) {}
  HugeBuffer& operator=(HugeBuffer&&) = delete;
  ~HugeBuffer() {
    if (base_ != nullptr) munmap(base_, mapped_);
  }

  char* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  size_t size_;
  size_t mapped_;
  void* base_;
  char* data_;
};

// Waits until the host has taken the free pages, if the host does this.
inline void LetHostTakeFreePages(size_t bytes) {
  constexpr size_t kWorthWaiting = size_t{256} << 20;
  constexpr auto kReportedAfter = std::chrono::milliseconds(2500);
  if (bytes >= kWorthWaiting && access("/sys/module/page_reporting", F_OK) == 0)
    std::this_thread::sleep_for(kReportedAfter);
}

// Touches memory before the measurement: pages that a virtual machine never touched fill at 0.5-1
// GB/s. Works like touch_and_free in measure.py, which explains the wait.
inline void TouchAndFree(size_t bytes) {
  if (bytes == 0) return;
  LetHostTakeFreePages(bytes);
  const HugeBuffer memory(bytes);
  for (size_t at = 0; at < memory.size(); at += 4096) memory.data()[at] = 1;
  LetHostTakeFreePages(bytes);
}

// A piece of one object and its destination. `object` is an index into the caller's list.
struct Block {
  size_t object;
  size_t offset;
  size_t size;
  char* destination;
};

// Cuts objects into equal blocks; threads take the next one until none is left. Thread-safe.
class BlockQueue {
 public:
  void Add(size_t object, size_t object_size, size_t block_size, char* destination) {
    for (size_t at = 0; at < object_size; at += block_size) {
      blocks_.push_back({object, at, std::min(block_size, object_size - at), destination + at});
    }
  }
  const Block* Take() {
    const size_t index = next_.fetch_add(1, std::memory_order_relaxed);
    return index < blocks_.size() ? &blocks_[index] : nullptr;
  }

 private:
  std::vector<Block> blocks_;
  std::atomic<size_t> next_{0};
};

// The same cheap sum as `digest` in measure.py, which differs if a reader has skipped a block.
inline uint64_t Digest(std::span<const char> bytes) {
  uint64_t sum = 0;
  for (size_t i = 0; i * kSampleStride < bytes.size(); ++i) {
    sum += (i + 1) * static_cast<unsigned char>(bytes[i * kSampleStride]);
  }
  return sum;
}

inline size_t ReadProcField(const char* path, const char* field, size_t unit) {
  std::FILE* file = std::fopen(path, "r");
  if (file == nullptr) return 0;
  char line[256];
  size_t value = 0;
  while (std::fgets(line, sizeof line, file) != nullptr) {
    if (std::strncmp(line, field, std::strlen(field)) == 0) {
      value = std::strtoull(line + std::strlen(field), nullptr, 10) * unit;
    }
  }
  std::fclose(file);
  return value;
}

// Starts counting on construction; `Stop` ends the counted section and `Print` writes the JSON
// line.
class Measurement {
 public:
  Measurement() {
    if (std::FILE* file = std::fopen("/proc/self/clear_refs", "w")) {
      std::fputs("5", file);  // resets the peak, which includes TouchAndFree
      std::fclose(file);
    }
    rss_before_ = ReadProcField("/proc/self/status", "VmRSS:", 1024);
    disk_before_ = DiskBytes();
    getrusage(RUSAGE_SELF, &usage_before_);
    started_ = std::chrono::steady_clock::now();
  }
  void Stop() {
    seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
    getrusage(RUSAGE_SELF, &usage_after_);
    peak_ = ReadProcField("/proc/self/status", "VmHWM:", 1024);
    disk_ = DiskBytes() - disk_before_;
  }
  void Print(size_t bytes, uint64_t digest) const {
    std::printf(
        "{\"bytes\": %zu, \"seconds\": %.6f, \"cpu_seconds\": %.6f, \"peak_rss_bytes\": %zu, "
        "\"minor_faults\": %ld, \"major_faults\": %ld, \"switches\": %ld, \"disk_bytes\": %zu, "
        "\"digest\": %llu}\n",
        bytes, seconds_, Cpu(usage_after_) - Cpu(usage_before_), peak_ - rss_before_,
        usage_after_.ru_minflt - usage_before_.ru_minflt,
        usage_after_.ru_majflt - usage_before_.ru_majflt,
        usage_after_.ru_nvcsw - usage_before_.ru_nvcsw, disk_,
        static_cast<unsigned long long>(digest));
  }

 private:
  static size_t DiskBytes() { return ReadProcField("/proc/self/io", "read_bytes:", 1); }
  static double Seconds(const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  }
  static double Cpu(const rusage& usage) {
    return Seconds(usage.ru_utime) + Seconds(usage.ru_stime);
  }

  rusage usage_before_{}, usage_after_{};
  size_t rss_before_ = 0, disk_before_ = 0, peak_ = 0, disk_ = 0;
  double seconds_ = 0;
  std::chrono::steady_clock::time_point started_;
};

}  // namespace bench

#endif  // STREAMER_BENCHMARKS_MEASURED_H_
