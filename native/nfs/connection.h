// One TCP connection to an NFS server: a libnfs context and its pending calls.
//
// Nothing here waits. The owner polls descriptor() for events(), calls service(), and checks
// failure(). After a failure no further call is allowed, and pending calls are never answered. The
// owner then drops the connection and repeats the calls on another one. Reconnecting by libnfs is
// off, because it would hide that the path may lead to another file afterwards.
//
// Answers arrive inside service(), or inside the call itself if libnfs already has the result. An
// answer callback must not throw. After an error it must not make another call, because libnfs
// forbids that.
//
// Not thread-safe. Different connections are independent.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/read_error.h"
#include "nfs/object.h"
#include "nfs/url.h"

struct nfs_context;
struct nfsdir;
struct nfsfh;

namespace streamer {

struct NfsTimeouts {
  double connect_s = 10;
  double stall_s = 10;
  double stall_bytes_per_s = 256 << 10;
};

class NfsConnection {
 public:
  template <typename Value>
  using Answer = std::function<void(std::optional<ReadError> error, Value value)>;

  // Begins to connect to `address` and to mount `folder`.
  NfsConnection(const NfsUrl& url, const std::string& address, const std::string& folder,
                const NfsTimeouts& timeouts);
  ~NfsConnection();
  NfsConnection(const NfsConnection&) = delete;
  NfsConnection& operator=(const NfsConnection&) = delete;

  bool is_ready() const { return is_mounted_ && !failure_; }
  const std::optional<ReadError>& failure() const { return failure_; }
  bool is_idle() const { return pending_calls_.empty(); }

  int descriptor();
  short events();
  void service(short events);
  // Fails the connection if connecting or the delivery of requested bytes takes too long.
  void enforce_deadlines(TimePoint now);

  // Call the following functions only if is_ready(). Paths are relative to the mounted folder.
  struct Found {
    std::string path;  // path of the file itself, with all links resolved
    NfsAttributes attributes;
  };
  // Follows links in this class, because libnfs 4 has two bugs. It treats an absolute link as a
  // relative one, and it never ends if links form a loop.
  void look_up(const std::string& path, Answer<Found> answer);
  void list(const std::string& path, Answer<nfsdir*> answer);
  // Calls of open() and close() must not overlap: NFSv4 numbers the operations that change the
  // state of open files.
  void open(const std::string& path, Answer<nfsfh*> answer);
  void close(nfsfh* file, Answer<int> answer);
  void attributes(nfsfh* file, Answer<NfsAttributes> answer);
  // `data` points to the bytes. They are in `buffer` if libnfs fills it. Otherwise they are in
  // libnfs's own memory, which is only valid within the callback.
  struct Bytes {
    const std::byte* data;
    std::uint64_t size;
  };
  void read(nfsfh* file, std::byte* buffer, std::uint64_t offset, std::uint64_t size,
            Answer<Bytes> answer);
  // Returns the largest number of bytes for one read.
  std::uint64_t read_bytes();

  nfs_context* context() { return context_.get(); }

 private:
  using Raw = std::function<void(int result, void* data)>;
  struct PendingCall {
    NfsConnection* connection;
    Raw answer;
    TimePoint deadline;
    std::list<PendingCall>::iterator position;
  };
  struct Destroy {
    void operator()(nfs_context* context) const;
  };

  static void on_answer(int result, nfs_context* context, void* data, void* call) noexcept;
  // Returns an argument for on_answer, which frees it. Only calls that transfer data may take a
  // long time.
  enum class Reply : bool { kStatus, kData };
  PendingCall* add_call(Raw answer, Reply what = Reply::kStatus);
  void look_further(std::string path, int links, std::shared_ptr<Answer<Found>> answer);
  void follow(const Found& link, int links, std::shared_ptr<Answer<Found>> answer);
  void check_queued(int queued, const char* action);
  ReadError error_of(const char* action, int result);
  void fail(ErrorCode code, std::string detail);
  std::uint64_t received_bytes();

  const NfsTimeouts timeouts_;
  // Outlives the context, because the context answers all pending calls when it is destroyed.
  std::list<PendingCall> pending_calls_;
  bool is_ending_ = false;
  bool is_mounted_ = false;
  std::optional<ReadError> failure_;
  TimePoint progress_at_ = Clock::now();  // time of the last check that detected progress
  std::uint64_t progress_bytes_ = 0;
  std::unique_ptr<nfs_context, Destroy> context_;
};

// Converts libnfs's attributes; `attributes` is a struct nfs_stat_64.
NfsAttributes nfs_attributes(const void* attributes);

}  // namespace streamer
