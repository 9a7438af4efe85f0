// Reads blocks of local files straight into their places.
//
// A file is opened once, for its first block. Opening never blocks: FIFOs, devices and directories
// are refused. Only preadv2 is used, so a file that is truncated meanwhile causes an error, not a
// SIGBUS. After every block, size, times and inode are compared with those at the opening. So a mix
// of bytes of two versions is always noticed.
//
// If a file server no longer knows the handle (ESTALE), or a read fails (EIO), the file is reopened
// once per block. If the version is still the same, reading continues after the last good byte. The
// file is closed after its last wanted byte, so only the shards that are being read use a
// descriptor.
//
// Reads past the page cache (O_DIRECT) switch to reads through the page cache in three cases. The
// file system refuses O_DIRECT. The cache already holds the block (io/page_cache.h). Another reader
// of this machine opens the file (io/other_readers.h), and can then read the bytes from the cache.
//
// Thread-safe: any number of threads may read blocks of the same file.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/read_error.h"
#include "io/open_file.h"
#include "io/read_call.h"
#include "plan/segment_cursor.h"

namespace streamer {

struct FileOptions {
  // If set, the opened file must lie in this folder after all links are resolved.
  std::string folder = {};
  bool is_direct = false;         // read past the page cache
  bool is_partly_cached = false;  // if direct: use the cache for blocks that it holds
  bool is_shared = false;         // if direct: use the cache while others read the file
  bool uses_ring = false;         // if direct: several reads at a time, in threads with a ReadRing
  ReadCall read_call = {};        // empty: the system call
  // Other processes write other parts of the file meanwhile, so changed times of the file are no
  // error. The caller must compare a checksum of the bytes.
  bool is_being_written = false;
};

class FileReader {
 public:
  // Reads some bytes of an open file from `offset` on to the place of the cursor. Returns their
  // number, 0 at the end of the file, or -1 with errno.
  using ReadStep =
      std::function<ssize_t(OpenFile& file, const SegmentCursor& cursor, off_t offset)>;

  // `version` is the version() of the same file in an earlier session, or empty.
  FileReader(std::string path, std::uint64_t size_bytes, std::string version,
             FileOptions options = {});
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  // Sets the total number of item bytes that will be read. Call this function before the first
  // block; without it, the file stays open until the reader is destroyed. `fills_own_memory` means
  // that the targets are the engine's memory, which is touched before a read. A caller's memory may
  // be a mapped file. A fault in a mapped file must be an error of the read, so a caller's memory
  // is not touched.
  void expect(std::uint64_t wanted_bytes, bool fills_own_memory) {
    wanted_bytes_ = wanted_bytes;
    fills_own_memory_ = fills_own_memory;
  }

  // Fills the block, or returns an error. When `is_cancelled` becomes true, returns early without
  // an error, and the caller drops the block. If `step` is set, it replaces the system call, and
  // reads past the page cache. If the file must then be read through the cache, the error is
  // ENOTSUP.
  std::optional<ReadError> read(Block& block, const std::function<bool()>& is_cancelled,
                                const ReadStep& step = nullptr);

  // Closes a file that was not read to its end. No thread may still be reading.
  void close();

  bool is_direct() const { return options_.is_direct; }

  // Returns text that changes whenever the content of the file may have changed. Empty before the
  // first block.
  std::string version();

 private:
  // An open file with its state at the opening. It is closed when the last block no longer uses it.
  struct VersionedFile : OpenFile {
    using OpenFile::OpenFile;

    std::atomic<bool> is_direct{false};
    std::atomic<bool> has_yielded{false};  // another reader came, so reads are no longer direct
    bool may_use_ring = false;
    std::unique_ptr<OpenFile> cached;  // the same file through the page cache, or null
    struct stat status {};
  };

  // Sets `file` to the open file. Opens the file again if the current one is `failed`.
  std::optional<ReadError> open_file(std::shared_ptr<VersionedFile>& file,
                                     const std::shared_ptr<VersionedFile>& failed);
  std::shared_ptr<VersionedFile> open_path() const;
  std::optional<ReadError> check_opened(VersionedFile& file);
  void count_read(const Block& block);
  std::optional<ReadError> read_from(VersionedFile& file, Block& block,
                                     const std::function<bool()>& is_cancelled,
                                     const ReadStep& step) const;
  void yield_to_others(VersionedFile& file) const;
  ssize_t read_some(VersionedFile& file, const SegmentCursor& cursor, off_t offset) const;
  ssize_t read_buffered(int descriptor, const SegmentCursor& cursor, off_t offset) const;

  const std::string path_;
  const std::uint64_t size_bytes_;
  const FileOptions options_;
  bool fills_own_memory_ = false;  // set before the first block
  std::mutex mutex_;
  std::uint64_t wanted_bytes_ = UINT64_MAX;  // bytes of items still to be read; guarded by mutex_
  std::string version_;                      // guarded by mutex_
  std::shared_ptr<VersionedFile> file_;      // guarded by mutex_
};

}  // namespace streamer
