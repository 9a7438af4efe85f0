// Reads blocks of local files straight into their places.
//
// A file is opened once, on its first block, never blocks on open (FIFOs, devices and directories
// are refused), and is read with preadv2 only: a file truncated under us is an error, not a SIGBUS.
// What it was at open (size, times, inode) is compared after every block, so bytes of two versions
// never mix unseen. A handle that a file server no longer knows (ESTALE) and a failing read (EIO)
// are met once per block by opening the file anew: the same version is read on from the last good
// byte. It is closed with the last byte that is wanted of it: of a thousand shards only those being
// read cost a descriptor. A file that is to be read past the page cache is read through it where
// its file system refuses that, where the cache holds the block already (io/page_cache.h), and from
// the moment on when another reader of this machine has it open (io/other_readers.h), which is to
// find there what this one read.
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
  // Unless this is empty, the file must lie in this folder when it is open, whatever links led
  // there.
  std::string folder = {};
  bool is_direct = false;         // past the page cache
  bool is_partly_cached = false;  // of that, through it where it holds the block
  bool is_shared = false;         // of that, through it while others read the file
  bool uses_ring = false;   // of that, several reads at a time from each thread that has a ReadRing
  ReadCall read_call = {};  // empty: the system's
};

class FileReader {
 public:
  // One step of reading an open file, from the offset on to where the cursor points. Returns bytes,
  // 0 at the end of the file, or -1 with errno.
  using ReadStep =
      std::function<ssize_t(OpenFile& file, const SegmentCursor& cursor, off_t offset)>;

  // `version` pins what an earlier session saw of the same file (see version()), or is empty.
  FileReader(std::string path, std::uint64_t size_bytes, std::string version,
             FileOptions options = {});
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  // How many bytes of items will be read in all; before the first block. Unless it is told, the
  // file stays open until the reader ends. Memory of the engine's own is touched before it is read
  // to; a caller's may be a mapped file, whose fault is an error of the read, and not of a touch.
  void expect(std::uint64_t wanted_bytes, bool fills_own_memory) {
    wanted_bytes_ = wanted_bytes;
    fills_own_memory_ = fills_own_memory;
  }

  // Fills the block, or says why not. Returns early, with success, once
  // `is_cancelled`: the caller drops the block. `step` reads in place of the system's calls, past
  // the page cache; where that is not to be, the error is ENOTSUP.
  std::optional<ReadError> read(Block& block, const std::function<bool()>& is_cancelled,
                                const ReadStep& step = nullptr);

  // Once no thread reads any more: a file that was not read to its end is not kept open.
  void close();

  bool is_direct() const { return options_.is_direct; }

  // What this file is: text that changes when its content may have. Empty before the first block.
  std::string version();

 private:
  // An open file and what it was when it was opened; closed when the last block is done with it.
  struct VersionedFile : OpenFile {
    using OpenFile::OpenFile;

    std::atomic<bool> is_direct{false};
    std::atomic<bool> has_yielded{false};  // to others: it is direct no more
    bool may_use_ring = false;
    std::unique_ptr<OpenFile> cached;  // the same file through the page cache, or null
    struct stat status {};
  };

  // Gives the open file in `file`; a new one when the file is still the `failed` one.
  std::optional<ReadError> open_file(std::shared_ptr<VersionedFile>& file,
                                     const std::shared_ptr<VersionedFile>& failed);
  std::shared_ptr<VersionedFile> open_path() const;
  std::optional<ReadError> check_opened(VersionedFile& file);
  void count(const Block& block);
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
  std::uint64_t wanted_bytes_ = UINT64_MAX;  // of items, still to be read; guarded by mutex_
  std::string version_;                      // guarded by mutex_
  std::shared_ptr<VersionedFile> file_;      // guarded by mutex_
};

}  // namespace streamer
