#include "io/direct_write.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "io/arena.h"

namespace streamer {
namespace {

// Large enough to keep a network disk busy, and small enough for eight threads.
constexpr std::size_t kBufferBytes = kLargeStepBytes;

class OpenForWriting {
 public:
  OpenForWriting(const std::string& path, int more_flags)
      : descriptor_(open(path.c_str(), O_WRONLY | O_CLOEXEC | more_flags)) {}
  ~OpenForWriting() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  OpenForWriting(const OpenForWriting&) = delete;
  OpenForWriting& operator=(const OpenForWriting&) = delete;

  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

// Returns one huge page, whose first touch costs one page fault instead of 512; null if there is no
// memory.
std::byte* buffer() {
  struct Unmap {
    void operator()(std::byte* memory) const { munmap(memory, kBufferBytes); }
  };
  static thread_local std::unique_ptr<std::byte, Unmap> memory;
  if (!memory) memory.reset(map_huge(kBufferBytes));
  return memory.get();
}

// Writes until all bytes are written. Returns the number of written bytes; if that is less, errno
// has the reason.
std::size_t write_all(int descriptor, std::span<const std::byte> bytes, std::uint64_t offset) {
  std::size_t written = 0;
  while (written < bytes.size()) {
    const ssize_t count = pwrite(descriptor, bytes.data() + written, bytes.size() - written,
                                 static_cast<off_t>(offset + written));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) break;
    written += static_cast<std::size_t>(count);
  }
  return written;
}

// Writes the whole pages of a part, until the file system refuses a write.
std::size_t write_pages(const std::string& path, std::span<const std::byte> part,
                        std::uint64_t offset) {
  const OpenForWriting file(path, O_DIRECT);
  std::byte* const memory = file.get() < 0 ? nullptr : buffer();
  if (memory == nullptr) return 0;
  const std::size_t whole = part.size() / kDirectAlignmentBytes * kDirectAlignmentBytes;
  std::size_t done = 0;
  while (done < whole) {
    const std::size_t step = std::min(kBufferBytes, whole - done);
    std::memcpy(memory, part.data() + done, step);
    const std::size_t written = write_all(file.get(), {memory, step}, offset + done);
    done += written / kDirectAlignmentBytes * kDirectAlignmentBytes;
    if (written < step) break;  // the page cache takes the rest, or reports the error
  }
  return done;
}

}  // namespace

int write_part(const std::string& path, std::span<const std::byte> part, std::uint64_t offset,
               bool is_direct) {
  const std::size_t done = is_direct ? write_pages(path, part, offset) : 0;
  const std::span<const std::byte> rest = part.subspan(done);
  if (rest.empty()) return 0;
  const OpenForWriting file(path, 0);
  if (file.get() < 0) return errno;
  return write_all(file.get(), rest, offset + done) == rest.size() ? 0 : errno;
}

int reserve_room(const std::string& path, std::uint64_t size_bytes) {
  const OpenForWriting file(path, 0);
  if (file.get() < 0) return errno;
  // Not posix_fallocate: on a file system without this call, it writes to every page.
  while (fallocate(file.get(), 0, 0, static_cast<off_t>(size_bytes)) != 0) {
    if (errno == EINTR) continue;
    return errno == EOPNOTSUPP || errno == ENOSYS ? 0 : errno;
  }
  return 0;
}

}  // namespace streamer
