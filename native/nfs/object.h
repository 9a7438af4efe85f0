// One file of an NFS server, shared by all connections of a session. Does not depend on libnfs.
//
// The caller or the first connection that opens the file pins its version. The version never
// changes afterwards.
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

// The attributes of a file that a server reports.
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
  // Returns text that changes whenever the content may have changed, because no program can set the
  // change time back. The text does not contain the inode, because a listing does not report it.
  std::string version() const;
};

class NfsObject {
 public:
  // `version` is the version of the same file in an earlier session, or empty. `addresses` are the
  // server's addresses; each attempt uses the next one.
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

  // Checks that a newly opened file has the size and the version of this object.
  std::optional<ReadError> check_opened(const NfsAttributes& attributes);

 private:
  const NfsUrl url_;
  const std::vector<std::string> addresses_;
  const std::uint64_t size_bytes_;
  std::mutex mutex_;
  std::string version_;  // guarded by mutex_
  const std::shared_ptr<Endpoint> endpoint_;
};

// Checks that a file did not change between its opening and now.
std::optional<ReadError> check_unchanged(const NfsAttributes& opened, const NfsAttributes& now);

// Returns the path that a link at `path` with the target `target` leads to; nothing if the target
// is above the root.
std::optional<std::string> path_behind_link(const std::string& path, const std::string& target);

}  // namespace streamer
