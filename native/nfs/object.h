// One file of an NFS server, as all connections of a session share it. Knows nothing of libnfs.
//
// Its version is pinned by the first connection that opens it, or by the caller, and never changes
// afterwards.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/read_error.h"
#include "net/endpoint.h"
#include "nfs/url.h"

namespace streamer {

// What a server says of a file.
struct NfsAttributes {
  std::uint64_t size = 0;
  std::uint64_t inode = 0;
  std::uint64_t mode = 0;  // as in struct stat
  std::uint64_t links = 0;
  std::int64_t modified_ns = 0;  // since 1970
  std::int64_t changed_ns = 0;

  bool is_file() const;
  bool is_folder() const;
  bool is_link() const;
  // Text that changes when the content may have: no program can set the time of a change back.
  // Without the inode, which a listing does not tell.
  std::string version() const;
};

class NfsObject {
 public:
  // `version` pins what an earlier session saw of the same file, or is empty. `addresses` are those
  // of the server; each further attempt takes the next.
  NfsObject(NfsUrl url, std::vector<std::string> addresses, std::uint64_t size_bytes,
            std::string version)
      : url_(std::move(url)),
        addresses_(std::move(addresses)),
        size_bytes_(size_bytes),
        version_(std::move(version)),
        endpoint_(Endpoint::named(url_.server_name())) {}

  const NfsUrl& url() const { return url_; }
  const std::vector<std::string>& addresses() const { return addresses_; }
  const std::shared_ptr<Endpoint>& endpoint() const { return endpoint_; }

  std::string version() {
    const std::lock_guard lock(mutex_);
    return version_;
  }

  // Compares a file just opened with what this object must be.
  std::optional<ReadError> check_opened(const NfsAttributes& attributes);

 private:
  const NfsUrl url_;
  const std::vector<std::string> addresses_;
  const std::uint64_t size_bytes_;
  std::mutex mutex_;
  std::string version_;  // guarded by mutex_
  const std::shared_ptr<Endpoint> endpoint_;
};

// Compares a file that was read with what it was when it was opened.
std::optional<ReadError> check_unchanged(const NfsAttributes& opened, const NfsAttributes& now);

// Where a link at `path` leads that says `target`, or nothing where that is above the root.
std::optional<std::string> path_behind_link(const std::string& path, const std::string& target);

}  // namespace streamer
