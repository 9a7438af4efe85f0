#include "io/file_reader.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "pipeline/segment_cursor.h"

namespace streamer {
namespace {

// Bytes per system call: small enough that cancelling a read from a slow disk takes well under a
// second.
constexpr std::uint64_t kBytesPerCall = std::uint64_t{2} << 20;
constexpr std::size_t kVectorsPerCall = 256;

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

ReadError error_of(ErrorCode code, std::string detail, int os_error = 0) {
  ReadError error;
  error.code = code;
  error.detail = std::move(detail);
  error.os_error = os_error;
  return error;
}

ReadError error_of_errno(const std::string& action, int os_error) {
  ErrorCode code = ErrorCode::kIo;
  if (os_error == ENOENT || os_error == ENOTDIR) code = ErrorCode::kNotFound;
  if (os_error == EACCES || os_error == EPERM) code = ErrorCode::kAccessDenied;
  return error_of(code, action + ": " + std::strerror(os_error), os_error);
}

// The next bytes to read, as the vectors of one preadv2 call. Dropped bytes go to a buffer nobody
// reads.
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

}  // namespace

FileReader::FileReader(std::string path, std::uint64_t size_bytes, std::string version)
    : path_(std::move(path)), size_bytes_(size_bytes), version_(std::move(version)) {}

FileReader::~FileReader() {
  if (descriptor_ >= 0) close(descriptor_);
}

std::string FileReader::version() {
  const std::lock_guard lock(mutex_);
  return version_;
}

std::optional<ReadError> FileReader::open_once() {
  const std::lock_guard lock(mutex_);
  return descriptor_ >= 0 ? std::nullopt : open_locked();
}

std::optional<ReadError> FileReader::open_locked() {
  // O_NONBLOCK: opening a FIFO must not wait for a writer. It changes nothing for regular files.
  const int descriptor = open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (descriptor < 0) return error_of_errno("cannot open the file", errno);
  auto error = check_opened(descriptor);
  if (error) {
    close(descriptor);
  } else {
    descriptor_ = descriptor;
  }
  return error;
}

std::optional<ReadError> FileReader::check_opened(int descriptor) {
  if (fstat(descriptor, &opened_) != 0) return error_of_errno("cannot stat the file", errno);
  if (!S_ISREG(opened_.st_mode)) return error_of(ErrorCode::kIo, "not a regular file");
  const std::string found = version_of(opened_);
  if (!version_.empty() && version_ != found) {
    return error_of(ErrorCode::kChanged,
                    "the file was replaced or rewritten since its header was read");
  }
  version_ = found;
  const auto size = static_cast<std::uint64_t>(opened_.st_size);
  if (size < size_bytes_) {
    return error_of(ErrorCode::kTruncated, "the file has " + std::to_string(size) + " bytes, not " +
                                               std::to_string(size_bytes_));
  }
  if (size > size_bytes_) return error_of(ErrorCode::kChanged, "the file grew while it was read");
  return std::nullopt;
}

std::optional<ReadError> FileReader::check_unchanged() const {
  struct stat now {};
  if (fstat(descriptor_, &now) != 0) return error_of_errno("cannot stat the file", errno);
  if (now.st_size < opened_.st_size) {
    return error_of(ErrorCode::kTruncated, "the file was truncated while it was read");
  }
  // Replacing a file by renaming another over it changes the ctime of the one we hold, not its
  // bytes.
  const bool is_relinked = now.st_nlink != opened_.st_nlink;
  const bool is_rewritten = now.st_size != opened_.st_size ||
                            !is_same(now.st_mtim, opened_.st_mtim) ||
                            (!is_relinked && !is_same(now.st_ctim, opened_.st_ctim));
  if (is_rewritten) {
    return error_of(ErrorCode::kChanged, "the file was rewritten while it was read");
  }
  return std::nullopt;
}

std::optional<ReadError> FileReader::read(Block& block, const std::function<bool()>& is_cancelled) {
  if (auto error = open_once()) return error;
  SegmentCursor cursor(block);
  std::array<iovec, kVectorsPerCall> vectors;
  while (block.received < block.size()) {
    if (is_cancelled()) return std::nullopt;
    const std::size_t count = next_vectors(cursor, vectors);
    const auto offset = static_cast<off_t>(block.begin + block.received);
    const ssize_t got = preadv2(descriptor_, vectors.data(), static_cast<int>(count), offset, 0);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got < 0) return error_of_errno("cannot read the file", errno);
    if (got == 0) return error_of(ErrorCode::kTruncated, "the file ends early");
    cursor.skip(static_cast<std::uint64_t>(got));
    block.received += static_cast<std::uint64_t>(got);
  }
  return check_unchanged();
}

}  // namespace streamer
