// One load: objects, a plan, the threads that read it, and the one consumer that takes what is
// finished.
//
// Life: add objects, start(), then wait() and take() until finished, then close(). close() stops
// and joins every native thread, gives back what was not taken, and may be called at any time, any
// number of times, from any thread but a reader's. Destroying a session closes it.
//
// After fork() the child owns none of the threads: every call but close() throws ForkedError there,
// and the destructor lets go of everything without touching it.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
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
  OutageTotals outages;                 // of all its servers, since the session started
  std::uint64_t peak_pinned_bytes = 0;  // of all devices, each at its own peak
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

  // Objects are numbered in the order they are added. Before start() only.
  void add_file(std::string path, std::uint64_t size_bytes, std::string version,
                FileOptions how = {});
  void add_http(HttpTarget target, std::uint64_t size_bytes, std::string version,
                std::string version_header, bool can_refresh);
  // Of an object added over HTTP; see HttpObject. Its requests are no larger than the checksum
  // allows.
  void compare_answers(std::uint32_t source, AnswerChecksum checksum);
  // Asks for the server's addresses, for as long as a connection may take, or until the caller has
  // had enough; wait() tells of a server that has none. Throws std::invalid_argument for a URL that
  // is none.
  void add_nfs(const std::string& url, std::uint64_t size_bytes, std::string version,
               const std::function<bool()>& is_interrupted = {});
  // `server` names what answers for it, in messages, and to know it again.
  void add_python(const std::string& server);
  // What is read of an object is written to a cache; with `may_wait`, all of it, as fast as that is
  // written.
  void write_to_cache(std::uint32_t source, std::shared_ptr<CacheEntry> entry, bool may_wait);

  using ConsumerStreams = DeviceCopiers::ConsumerStreams;

  // Throws std::invalid_argument for a plan that does not fit the objects. A device that refuses
  // is told by wait(), as all that fails later.
  void start(Plan plan, const ConsumerStreams& streams = {});

  // --- the consumer, one thread at a time ---
  Delivery wait(double timeout_s, std::uint64_t enough_bytes = 0);
  // Memory of delivered items; empty where the caller gave the target.
  std::vector<Memory> take(const std::vector<std::uint32_t>& items);
  // From here on, at most that of the options; what is held already stays.
  void set_memory_limit(std::uint64_t limit_bytes);
  std::vector<Piece> digest_pieces(std::uint32_t item);
  void renew(std::uint32_t source, HttpTarget target);
  // What wait() would give as Delivery::to_allocate; never waits.
  std::vector<std::uint32_t> next_to_allocate();
  // Memory for items of Delivery::to_allocate, all of one device; copies into it wait for what
  // `stream` was given by now.
  void provide(std::int32_t device, CudaStreamHandle stream,
               const std::vector<std::uint32_t>& items, const std::vector<std::byte*>& targets);

  // Every answer about this object so far was compared with a checksum of it.
  bool compares_answers(std::uint32_t source);

  // What was read of an object: text that changes when its content does. Empty where unknown.
  std::string version(std::uint32_t source);

  // For PythonBlock, on any number of threads. Only once it has started.
  PythonLoans& python();
  void fail(ReadError error);

  SessionStats stats();
  // The servers that are waited for now.
  std::vector<OpenOutage> outages();
  // True where a device was still copying when the session was closed, and did not finish in time:
  // the memory of the items' targets must never be freed.
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
