// Reads blocks of local files straight into their segments.
//
// A file is opened once, on its first block, never blocks on open (FIFOs, devices and directories
// are refused), and is read with preadv2 only: a file truncated under us is an error, not a SIGBUS.
// What it was at open (size, times, inode) is compared after every block, so bytes of two versions
// never mix unseen.
//
// Thread-safe: any number of threads may read blocks of the same file.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "base/read_error.h"
#include "pipeline/plan.h"

namespace streamer {

class FileReader {
 public:
  // `version` pins what an earlier session saw of the same file (see version()), or is empty.
  FileReader(std::string path, std::uint64_t size_bytes, std::string version);
  ~FileReader();
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  // Fills the segments of the block, or says why not. Returns early, with success, once
  // `is_cancelled`: the caller drops the block.
  std::optional<ReadError> read(Block& block, const std::function<bool()>& is_cancelled);

  // What this file is: text that changes when its content may have. Empty before the first block.
  std::string version();

 private:
  std::optional<ReadError> open_once();
  std::optional<ReadError> open_locked();
  std::optional<ReadError> check_opened(int descriptor);
  std::optional<ReadError> check_unchanged() const;

  const std::string path_;
  const std::uint64_t size_bytes_;
  std::mutex mutex_;     // guards opening
  std::string version_;  // guarded by mutex_
  int descriptor_ = -1;  // set once, under mutex_, before any block is read
  struct stat opened_ {};
};

}  // namespace streamer
