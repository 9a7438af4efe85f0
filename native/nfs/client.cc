#include "nfs/client.h"

#include <poll.h>
#include <sys/stat.h>

#include <optional>
#include <utility>

#include "net/server_addresses.h"
#include "nfs/libnfs.h"

namespace streamer {
namespace {

constexpr int kPollMs = 100;  // time between two checks whether the caller is interrupted

// RFC 1813 and RFC 7530 use the same numbers for file types.
std::uint64_t mode_of_type(std::uint32_t type) {
  switch (type) {
    case 1:
      return S_IFREG;
    case 2:
      return S_IFDIR;
    case 5:
      return S_IFLNK;
    default:
      return 0;
  }
}

NfsEntry entry_of(const nfsdirent& listed) {
  constexpr std::int64_t kNanoseconds = 1'000'000'000;
  NfsEntry entry;
  entry.name = listed.name;
  entry.attributes.size = listed.size;
  entry.attributes.mode = mode_of_type(listed.type);
  entry.attributes.links = listed.nlink;
  entry.attributes.modified_ns = listed.mtime.tv_sec * kNanoseconds + listed.mtime_nsec;
  entry.attributes.changed_ns = listed.ctime.tv_sec * kNanoseconds + listed.ctime_nsec;
  return entry;
}

std::vector<NfsEntry> take_entries(nfs_context* context, nfsdir* folder) {
  std::vector<NfsEntry> entries;
  while (const nfsdirent* listed = nfs_readdir(context, folder)) {
    const std::string name = listed->name;
    if (name != "." && name != "..") entries.push_back(entry_of(*listed));
  }
  nfs_closedir(context, folder);
  return entries;
}

// Works until `is_done` and returns true. Returns false if the connection fails or the caller is
// interrupted.
bool drive(NfsConnection& connection, const NfsClient::Interrupted& is_interrupted,
           const std::function<bool()>& is_done) {
  while (!is_done()) {
    if (connection.failure() || is_interrupted()) return false;
    pollfd waiting{connection.descriptor(), connection.events(), 0};
    if (poll(&waiting, 1, kPollMs) > 0) connection.service(waiting.revents);
    connection.enforce_deadlines(Clock::now());
  }
  return true;
}

ReadError failure_of(const NfsConnection& connection) {
  if (connection.failure()) return *connection.failure();
  return error_of(ErrorCode::kIo, "interrupted");
}

}  // namespace

NfsClient::NfsClient(NfsUrl url, const NfsTimeouts& timeouts)
    : url_(std::move(url)), timeouts_(timeouts) {}

NfsClient::Result<NfsAttributes> NfsClient::stat(const std::string& path,
                                                 const Interrupted& is_interrupted) {
  const std::size_t slash = url_.version == 4 ? 0 : path.rfind('/');
  const auto ask = [name = path.substr(slash)](NfsConnection& connection,
                                               NfsConnection::Answer<NfsAttributes> answer) {
    connection.look_up(name, [answer = std::move(answer)](std::optional<ReadError> error,
                                                          const NfsConnection::Found& file) {
      answer(std::move(error), file.attributes);
    });
  };
  return call<NfsAttributes>(slash == 0 ? "/" : path.substr(0, slash), is_interrupted, ask);
}

NfsClient::Result<std::vector<NfsEntry>> NfsClient::list(const std::string& path,
                                                         const Interrupted& is_interrupted) {
  using Entries = std::vector<NfsEntry>;
  const auto ask = [name = url_.version == 4 ? path : "/"](NfsConnection& connection,
                                                           NfsConnection::Answer<Entries> answer) {
    connection.list(name, [&connection, answer = std::move(answer)](std::optional<ReadError> error,
                                                                    nfsdir* folder) {
      if (error) return answer(std::move(error), {});
      answer(std::nullopt, take_entries(connection.context(), folder));
    });
  };
  return call<Entries>(url_.version == 4 ? "/" : path, is_interrupted, ask);
}

void NfsClient::close() {
  const std::lock_guard lock(mutex_);
  kept_.clear();
}

template <typename Value, typename Ask>
NfsClient::Result<Value> NfsClient::call(const std::string& folder,
                                         const Interrupted& is_interrupted, Ask ask) {
  std::optional<Result<Value>> result;
  const auto answer = [&result](std::optional<ReadError> error, Value value) {
    if (error) {
      result.emplace(std::move(*error));
    } else {
      result.emplace(std::move(value));
    }
  };
  // A kept connection may be dead by now, and some addresses of the server may not answer.
  Owned connection = take_kept(folder);
  std::vector<std::string> candidates;
  for (std::size_t tried = 0;; connection.reset()) {
    result.reset();
    const bool is_fresh = !connection;
    if (is_fresh) {
      if (candidates.empty()) {
        auto looked_up = addresses(is_interrupted);
        if (auto* error = std::get_if<ReadError>(&looked_up)) return std::move(*error);
        candidates = std::get<std::vector<std::string>>(std::move(looked_up));
      }
      connection = std::make_unique<NfsConnection>(url_, candidates[tried++], folder, timeouts_);
    }
    const auto is_ready = [&connection] { return connection->is_ready(); };
    if (drive(*connection, is_interrupted, is_ready)) {
      ask(*connection, answer);
      if (drive(*connection, is_interrupted, [&result] { return result.has_value(); })) {
        if (!connection->failure()) {
          keep(folder, std::move(connection));
          return std::move(*result);
        }
      }
    }
    const bool has_another = !is_fresh || tried < candidates.size();
    if (!connection->failure() || !has_another) return failure_of(*connection);
  }
}

NfsClient::Result<std::vector<std::string>> NfsClient::addresses(
    const Interrupted& is_interrupted) {
  {
    const std::lock_guard lock(mutex_);
    if (!addresses_.empty()) return addresses_;
  }
  auto looked_up = addresses_of(
      url_.server, {.timeout_s = timeouts_.connect_s, .is_interrupted = is_interrupted});
  const std::lock_guard lock(mutex_);
  if (const auto* all = std::get_if<std::vector<std::string>>(&looked_up)) addresses_ = *all;
  return looked_up;
}

NfsClient::Owned NfsClient::take_kept(const std::string& folder) {
  const std::lock_guard lock(mutex_);
  std::vector<Owned>& kept = kept_[folder];
  if (kept.empty()) return nullptr;
  Owned connection = std::move(kept.back());
  kept.pop_back();
  return connection;
}

void NfsClient::keep(const std::string& folder, Owned connection) {
  const std::lock_guard lock(mutex_);
  kept_[folder].push_back(std::move(connection));
}

}  // namespace streamer
