// One TCP connection to an NFS server: a libnfs context, and what is asked over it.
//
// Nothing here waits: the owner polls descriptor() for events(), calls service(), and looks at
// failure(). Once there is a failure, nothing more may be asked, and every question not yet
// answered stays so: the owner drops the connection and asks again on another. libnfs's own
// reconnecting is off, as it would hide that a file may be another one afterwards.
//
// Answers arrive inside service(), or, for what libnfs knows already, inside the question. An
// answer must ask nothing unless it is a good one (libnfs forbids it), and must not throw.
//
// Not thread-safe; different connections are independent.
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
  bool is_idle() const { return questions_.empty(); }

  int descriptor();
  short events();
  void service(short events);
  // Fails the connection when it takes too long to come up or to bring bytes it owes.
  void enforce_deadlines(TimePoint now);

  // Paths are relative to the mounted folder. Only once is_ready().
  struct Found {
    std::string path;  // of the file itself, behind all links
    NfsAttributes attributes;
  };
  // Follows links here, as libnfs 4 loses its way in them: it takes an absolute one for a relative
  // one, and never gives up on a loop.
  void look_up(const std::string& path, Answer<Found> answer);
  void list(const std::string& path, Answer<nfsdir*> answer);
  // One at a time: NFSv4 numbers what changes the state of its files.
  void open(const std::string& path, Answer<nfsfh*> answer);
  void close(nfsfh* file, Answer<int> answer);
  void attributes(nfsfh* file, Answer<NfsAttributes> answer);
  // `data` is where the bytes are: `buffer` itself where libnfs fills it, else libnfs's own memory,
  // valid within the call only.
  struct Bytes {
    const std::byte* data;
    std::uint64_t size;
  };
  void read(nfsfh* file, std::byte* buffer, std::uint64_t offset, std::uint64_t size,
            Answer<Bytes> answer);
  // Most bytes one read should ask for.
  std::uint64_t read_bytes();

  nfs_context* context() { return context_.get(); }

 private:
  using Raw = std::function<void(int result, void* data)>;
  struct Question {
    NfsConnection* connection;
    Raw answer;
    TimePoint deadline;
    std::list<Question>::iterator position;
  };
  struct Destroy {
    void operator()(nfs_context* context) const;
  };

  static void on_answer(int result, nfs_context* context, void* data, void* question) noexcept;
  // An argument for on_answer, which frees it. Only what brings data may take long.
  enum class Brings : bool { kWord, kData };
  Question* question(Raw answer, Brings what = Brings::kWord);
  void look_further(std::string path, int links, std::shared_ptr<Answer<Found>> answer);
  void follow(const Found& link, int links, std::shared_ptr<Answer<Found>> answer);
  void check_queued(int queued, const char* action);
  ReadError error_of(const char* action, int result);
  void fail(ErrorCode code, std::string detail);
  std::uint64_t received_bytes();

  const NfsTimeouts timeouts_;
  std::list<Question> questions_;  // outlives the context, which answers them all when it dies
  bool is_dying_ = false;
  bool is_mounted_ = false;
  std::optional<ReadError> failure_;
  TimePoint progress_at_ = Clock::now();  // the last look at which bytes had come
  std::uint64_t progress_bytes_ = 0;
  std::unique_ptr<nfs_context, Destroy> context_;
};

// libnfs's attributes as ours; `attributes` is a struct nfs_stat_64.
NfsAttributes nfs_attributes(const void* attributes);

}  // namespace streamer
