// Looks up files and folders of an NFS server, on the caller's thread.
//
// Every call ends with an answer, with an error within the time-outs, or soon after an interrupt.
// Connections are kept between calls. A dead connection is replaced without an error. Nothing else
// is cached: an answer is never older than its call.
//
// Thread-safe: each call in progress has its own connection.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <variant>
#include <vector>

#include "nfs/connection.h"

namespace streamer {

struct NfsEntry {
  std::string name;
  NfsAttributes attributes;
};

class NfsClient {
 public:
  using Interrupted = std::function<bool()>;
  template <typename Value>
  using Result = std::variant<Value, ReadError>;

  NfsClient(NfsUrl url, const NfsTimeouts& timeouts);

  // Returns the attributes of a file or folder. Follows symbolic links.
  Result<NfsAttributes> stat(const std::string& path, const Interrupted& is_interrupted);
  // Lists the direct entries of a folder; links are not followed.
  Result<std::vector<NfsEntry>> list(const std::string& path, const Interrupted& is_interrupted);

  void close();

 private:
  using Owned = std::unique_ptr<NfsConnection>;
  struct Call;

  template <typename Value, typename Ask>
  Result<Value> call(const std::string& folder, const Interrupted& is_interrupted, Ask ask);
  Result<std::vector<std::string>> addresses(const Interrupted& is_interrupted);
  Owned take_kept(const std::string& folder);
  void keep(const std::string& folder, Owned connection);

  const NfsUrl url_;
  const NfsTimeouts timeouts_;
  std::mutex mutex_;
  std::vector<std::string> addresses_;              // addresses of the server; guarded by mutex_
  std::map<std::string, std::vector<Owned>> kept_;  // by mounted folder; guarded by mutex_
};

}  // namespace streamer
