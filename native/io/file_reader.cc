#include "io/file_reader.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <ctime>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "io/direct_read.h"
#include "io/huge_pages.h"
#include "io/inside_folder.h"
#include "io/other_readers.h"
#include "io/page_cache.h"

namespace streamer {
namespace {

constexpr std::size_t kVectorsPerCall = 256;
constexpr double kClockTickS = 0.01;    // tick of file times on a kernel with 100 Hz
constexpr double kLongestWriteS = 600;  // a call on a slow disk, plus the difference of clocks

std::string version_of(const struct stat& status) {
  const auto nanoseconds = [](const timespec& time) {
    return std::to_string(std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec);
  };
  return std::to_string(status.st_dev) + "-" + std::to_string(status.st_ino) + "-" +
         std::to_string(status.st_size) + "-" + nanoseconds(status.st_mtim) + "-" +
         nanoseconds(status.st_ctim);
}

bool is_same(const timespec& a, const timespec& b) {
  return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

ReadError error_of_errno(const std::string& action, int os_error) {
  ErrorCode code = ErrorCode::kIo;
  if (os_error == ENOENT || os_error == ENOTDIR) code = ErrorCode::kNotFound;
  if (os_error == EACCES || os_error == EPERM) code = ErrorCode::kAccessDenied;
  return error_of(code, action + ": " + std::strerror(os_error), os_error);
}

// Fills `vectors` for one preadv2 call with the next bytes to read, and returns the number of
// vectors. Unwanted bytes go to a buffer that nobody reads.
std::size_t next_vectors(SegmentCursor cursor, std::array<iovec, kVectorsPerCall>& vectors) {
  static thread_local std::array<std::byte, 64 << 10> dropped;
  std::uint64_t budget = kBytesPerCall;
  std::size_t count = 0;
  while (count < vectors.size() && budget > 0 && !cursor.is_at_end()) {
    const Segment piece = cursor.piece();
    std::uint64_t size = std::min(piece.size, budget);
    if (piece.target == nullptr) size = std::min<std::uint64_t>(size, dropped.size());
    vectors[count++] = {piece.target == nullptr ? dropped.data() : piece.target, size};
    cursor.skip(size);
    budget -= size;
  }
  return count;
}

// Whether the file server no longer knows the handle (ESTALE), or the network or disk failed (EIO).
bool is_worth_reopening(int os_error) { return os_error == ESTALE || os_error == EIO; }

ssize_t read_without_flags(int descriptor, const iovec* vectors, int count, off_t offset) {
  return preadv2(descriptor, vectors, count, offset, 0);
}

FileOptions with_read_call(FileOptions options) {
  if (!options.read_call) options.read_call = read_without_flags;
  return options;
}

void clear_flag(int descriptor, int flag) {
  const int flags = fcntl(descriptor, F_GETFL);
  if (flags >= 0) fcntl(descriptor, F_SETFL, flags & ~flag);
}

double seconds_since(const timespec& time) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<double>(now.tv_sec - time.tv_sec) +
         static_cast<double>(now.tv_nsec - time.tv_nsec) * 1e-9;
}

std::optional<ReadError> check_unchanged(int descriptor, const struct stat& opened) {
  struct stat now {};
  if (fstat(descriptor, &now) != 0) return error_of_errno("cannot stat the file", errno);
  if (now.st_size < opened.st_size) {
    return error_of(ErrorCode::kTruncated, "the file was truncated while it was read");
  }
  // A rename of another file over this one changes the ctime of the open file, but not its bytes.
  const bool is_relinked = now.st_nlink != opened.st_nlink;
  const bool is_rewritten = now.st_size != opened.st_size ||
                            !is_same(now.st_mtim, opened.st_mtim) ||
                            (!is_relinked && !is_same(now.st_ctim, opened.st_ctim));
  if (is_rewritten) {
    return error_of(ErrorCode::kChanged, "the file, or its attributes, changed while it was read");
  }
  return std::nullopt;
}

// The change time is set when a write begins, not when it ends. If a write is under way when the
// file is opened, a later fstat() cannot reveal it. Local file systems take the lock of writes for
// lseek(SEEK_DATA), so this call waits until that write ends. Every later write sets a new change
// time.
void wait_for_write_under_way(int descriptor) { (void)!lseek(descriptor, 0, SEEK_DATA); }

std::optional<ReadError> stat_now(int descriptor, struct stat& status) {
  if (fstat(descriptor, &status) != 0) return error_of_errno("cannot stat the file", errno);
  return std::nullopt;
}

// Two writes within one tick of the clock have the same time. So this function waits until the last
// write is older than a tick.
std::optional<ReadError> stat_settled(int descriptor, struct stat& status) {
  if (auto error = stat_now(descriptor, status)) return error;
  const double age_s = seconds_since(status.st_ctim);
  if (age_s >= 0 && age_s < kClockTickS) {
    std::this_thread::sleep_for(Seconds(kClockTickS - age_s));
    if (fstat(descriptor, &status) != 0) return error_of_errno("cannot stat the file", errno);
  }
  if (std::abs(age_s) < kLongestWriteS) wait_for_write_under_way(descriptor);
  return std::nullopt;
}

// Whether direct reads of this file may use a ring. A FUSE server may return less than a direct
// read requests. In a ring, the kernel then reads the rest into the wrong place and reports the
// read as complete. If the file system type is not known, no ring is used either.
// ring is used either.
bool takes_rings(int descriptor) {
  constexpr auto kFuse = 0x65735546U;  // FUSE_SUPER_MAGIC; virtiofs has the same number
  struct statfs status {};
  return fstatfs(descriptor, &status) == 0 && static_cast<unsigned>(status.f_type) != kFuse;
}

}  // namespace

FileReader::FileReader(std::string path, std::uint64_t size_bytes, std::string version,
                       FileOptions options)
    : path_(std::move(path)),
      size_bytes_(size_bytes),
      options_(with_read_call(std::move(options))),
      version_(std::move(version)) {}

std::string FileReader::version() {
  const std::lock_guard lock(mutex_);
  return version_;
}

void FileReader::close() {
  const std::lock_guard lock(mutex_);
  file_.reset();
}

std::optional<ReadError> FileReader::open_file(std::shared_ptr<VersionedFile>& file,
                                               const std::shared_ptr<VersionedFile>& failed) {
  const std::lock_guard lock(mutex_);
  if (!file_ || file_ == failed) {
    const auto opened = open_path();
    if (!opened) return error_of_errno("cannot open the file", errno);
    if (auto error = check_opened(*opened)) return error;
    file_ = opened;
  }
  file = file_;
  return std::nullopt;
}

// Opens the file. Returns null with errno on failure.
std::shared_ptr<FileReader::VersionedFile> FileReader::open_path() const {
  // O_NONBLOCK: opening a FIFO must not wait for a writer.
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  if (options_.is_direct) {
    const int descriptor = open(path_.c_str(), kFlags | O_DIRECT);
    if (descriptor >= 0) {
      auto opened = std::make_shared<VersionedFile>(descriptor);
      opened->is_direct = true;
      opened->may_use_ring = options_.uses_ring && takes_rings(descriptor);
      if (options_.is_shared) mark_as_read(descriptor);
      const int cached = options_.is_partly_cached ? open_through_cache(descriptor) : -1;
      if (cached >= 0) opened->cached = std::make_unique<OpenFile>(cached);
      return opened;
    }
    if (errno != EINVAL) return nullptr;  // a file system without O_DIRECT answers EINVAL
  }
  const int descriptor = open(path_.c_str(), kFlags);
  return descriptor < 0 ? nullptr : std::make_shared<VersionedFile>(descriptor);
}

std::optional<ReadError> FileReader::check_opened(VersionedFile& file) {
  if (auto error = options_.is_being_written ? stat_now(file.descriptor, file.status)
                                             : stat_settled(file.descriptor, file.status)) {
    return error;
  }
  if (!S_ISREG(file.status.st_mode)) return error_of(ErrorCode::kIo, "not a regular file");
  clear_flag(file.descriptor, O_NONBLOCK);  // libcufile refuses files with this flag
  if (!options_.folder.empty() && !lies_inside(file.descriptor, options_.folder)) {
    return error_of(ErrorCode::kLeavesFolder, "a symbolic link leads out of the folder");
  }
  const std::string version = version_of(file.status);
  if (!options_.is_being_written && !version_.empty() && version_ != version) {
    return error_of(ErrorCode::kChanged,
                    "the file was replaced or rewritten since its header was read");
  }
  version_ = version;
  const auto size = static_cast<std::uint64_t>(file.status.st_size);
  if (size < size_bytes_) {
    return error_of(ErrorCode::kTruncated, "the file has " + std::to_string(size) + " bytes, not " +
                                               std::to_string(size_bytes_));
  }
  if (size > size_bytes_) return error_of(ErrorCode::kChanged, "the file grew while it was read");
  return std::nullopt;
}

std::optional<ReadError> FileReader::read(Block& block, const std::function<bool()>& is_cancelled,
                                          const ReadStep& step) {
  std::shared_ptr<VersionedFile> file;
  std::optional<ReadError> error;
  for (int attempt = 0; attempt < 2; ++attempt) {
    std::shared_ptr<VersionedFile> next;
    error = open_file(next, file);
    if (!error) error = read_from(*next, block, is_cancelled, step);
    if (!error && block.received == block.size()) count_read(block);
    if (!error || !is_worth_reopening(error->os_error)) return error;
    if (next) file = std::move(next);
  }
  error->attempts = 2;
  return error;
}

void FileReader::count_read(const Block& block) {
  const bool was_counted = block.is_reread;
  const std::lock_guard lock(mutex_);
  if (!was_counted) wanted_bytes_ -= block.wanted_bytes();
  if (wanted_bytes_ == 0) file_.reset();
}

void FileReader::yield_to_others(VersionedFile& file) const {
  if (!options_.is_shared || !file.is_direct || !has_other_readers(file.descriptor)) return;
  file.is_direct = false;
  file.has_yielded = true;
  clear_flag(file.descriptor, O_DIRECT);
}

ssize_t FileReader::read_some(VersionedFile& file, const SegmentCursor& cursor,
                              off_t offset) const {
  if (file.is_direct) {
    ReadRing* const ring = file.may_use_ring ? ReadRing::of_this_thread() : nullptr;
    const ssize_t got = read_direct(options_.read_call, ring, file.descriptor, cursor, offset);
    const bool is_refused = errno == EINVAL || errno == EOPNOTSUPP;
    if (got >= 0 || (!is_refused && errno != ENOMEM)) return got;
    file.is_direct = false;
    clear_flag(file.descriptor,
               O_DIRECT);  // the rest goes through the page cache, without a buffer
  }
  return read_buffered(file.descriptor, cursor, offset);
}

ssize_t FileReader::read_buffered(int descriptor, const SegmentCursor& cursor, off_t offset) const {
  std::array<iovec, kVectorsPerCall> vectors;
  const std::size_t count = next_vectors(cursor, vectors);
  if (fills_own_memory_) touch_huge_pages(vectors.data(), count);
  return options_.read_call(descriptor, vectors.data(), static_cast<int>(count), offset);
}

std::optional<ReadError> FileReader::read_from(VersionedFile& file, Block& block,
                                               const std::function<bool()>& is_cancelled,
                                               const ReadStep& step) const {
  yield_to_others(file);
  if (step && file.has_yielded) {
    return error_of(ErrorCode::kIo, "other processes read this file, too", ENOTSUP);
  }
  const bool from_cache = !step && file.is_direct && file.cached &&
                          is_range_cached(file.cached->descriptor, static_cast<off_t>(block.begin),
                                          static_cast<off_t>(block.end));
  SegmentCursor cursor(block);
  while (block.received < block.size()) {
    if (is_cancelled()) return std::nullopt;
    const auto offset = static_cast<off_t>(block.begin + block.received);
    const ssize_t got = step         ? step(file, cursor, offset)
                        : from_cache ? read_buffered(file.cached->descriptor, cursor, offset)
                                     : read_some(file, cursor, offset);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got < 0) {
      return error_of_errno("cannot read the file at byte " + std::to_string(offset), errno);
    }
    if (got == 0) return error_of(ErrorCode::kTruncated, "the file ends early");
    cursor.skip(static_cast<std::uint64_t>(got));
    block.received += static_cast<std::uint64_t>(got);
  }
  return options_.is_being_written ? std::nullopt : check_unchanged(file.descriptor, file.status);
}

}  // namespace streamer
