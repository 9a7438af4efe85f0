// One load: its objects, its plan, the threads that read, and the one consumer of finished items.
//
// Order of calls: add objects, start(), then wait() and take() until finished, then close().
// close() stops and joins every native thread, and frees everything that was not taken. It may be
// called at any time, repeatedly, from any thread except a reader's. The destructor also closes the
// session.
//
// After fork(), the child owns none of the threads. In the child, every call except close() throws
// ForkedError, and the destructor leaves everything untouched.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cache/entry.h"
#include "gpu/device_copiers.h"
#include "http/object.h"
#include "io/arena.h"
#include "io/file_reader.h"
#include "nfs/object.h"
#include "schedule/scheduler.h"
#include "session/outage_watch.h"
#include "session/python_loans.h"
#include "session/session_options.h"

namespace streamer {

struct SessionStats {
  SchedulerStats scheduler;
  std::uint64_t http_requests = 0;
  std::uint64_t credential_refreshes = 0;
  std::uint64_t hedges = 0;
  OutageTotals outages;                 // outages of all servers, since the session started
  std::uint64_t peak_pinned_bytes = 0;  // sum over all devices, each at its own peak
  int gpudirect_refusal = 0;            // see DeviceFileReads::refusal()
};

class ForkedError : public std::logic_error {
 public:
  ForkedError()
      : std::logic_error("this stream belongs to the parent process; open a new one after fork()") {
  }
};

class Session {
 public:
  explicit Session(SessionOptions options);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Objects are numbered in the order in which they are added. Call these only before start().
  void add_file(std::string path, std::uint64_t size_bytes, std::string version,
                FileOptions how = {});
  void add_http(HttpTarget target, std::uint64_t size_bytes, std::string version,
                std::string version_header, bool can_refresh);
  // For an object added over HTTP; see HttpObject. Its requests are never larger than the checksum
  // allows.
  void compare_answers(std::uint32_t source, AnswerChecksum checksum);
  // Looks up the server's addresses. The lookup ends after the connect time-out, or when the caller
  // is interrupted. wait() reports a server without address. Throws std::invalid_argument if the
  // URL is invalid.
  void add_nfs(const std::string& url, std::uint64_t size_bytes, std::string version,
               const std::function<bool()>& is_interrupted = {});
  // `server` names the source in messages, and identifies its server.
  void add_python(const std::string& server);
  // Writes the bytes that are read of an object to a cache. With `may_wait`, all bytes are written,
  // and the load is no faster than the disk.
  void write_to_cache(std::uint32_t source, std::shared_ptr<CacheEntry> entry, bool may_wait);

  using ConsumerStreams = DeviceCopiers::ConsumerStreams;

  // Throws std::invalid_argument if the plan does not fit the objects. wait() reports a device that
  // refuses, and all later failures.
  void start(Plan plan, const ConsumerStreams& streams = {});

  // --- the consumer, one thread at a time ---
  Delivery wait(double timeout_s, std::uint64_t enough_bytes = 0);
  // Returns the memory of delivered items; empty if the caller provided the target.
  std::vector<Memory> take(const std::vector<std::uint32_t>& items);
  // Sets a new limit, at most the one of the options. Memory that is held stays.
  void set_memory_limit(std::uint64_t limit_bytes);
  std::vector<Piece> digest_pieces(std::uint32_t item);
  Hash hash(std::uint32_t item);
  void renew(std::uint32_t source, HttpTarget target);
  // Returns what wait() would return as Delivery::to_allocate. Never waits.
  std::vector<std::uint32_t> next_to_allocate();
  // Sets the memory for items of Delivery::to_allocate, all of one device. Copies into it wait for
  // the work that is on `stream` now.
  void provide(std::int32_t device, CudaStreamHandle stream,
               const std::vector<std::uint32_t>& items, const std::vector<std::byte*>& targets);

  // Whether every response about this object so far was compared with a checksum.
  bool compares_answers(std::uint32_t source);

  // Returns text that changes when the content of the object changes; empty if it is unknown.
  std::string version(std::uint32_t source);

  // For PythonBlock, on any number of threads. Call this only after start().
  PythonLoans& python();
  void fail(ReadError error);

  SessionStats stats();
  // Returns how many bytes of finished items came from the caches of other machines, by source.
  std::map<std::uint32_t, std::uint64_t> peer_bytes();
  // For the guide of a load with peers, see Scheduler. Call these only after start().
  // Returns the bytes that each source has given; for HTTP, those of unfinished blocks, too.
  std::vector<std::uint64_t> received_bytes();
  void release(const std::vector<ReleasedItem>& items);
  std::vector<std::uint32_t> lost_peers();
  void win_back(std::uint32_t source);
  // Returns the events so far and the number of dropped ones; see TraceLog::take().
  std::pair<std::vector<TraceEvent>, std::uint64_t> take_trace();
  // Returns the servers that the load waits for now.
  std::vector<OpenOutage> outages();
  // Whether a device was still copying when the session was closed, and did not finish in time. The
  // memory of the items' targets must then never be freed.
  bool has_abandoned_copies() const;
  bool is_forked() const;
  void close();

 private:
  struct State;

  State& state() const;

  const pid_t owner_;
  std::unique_ptr<State> state_;
};

}  // namespace streamer
