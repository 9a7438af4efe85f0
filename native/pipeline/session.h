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

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "io/arena.h"
#include "io/file_reader.h"
#include "net/http_object.h"
#include "net/http_reactor.h"
#include "net/nfs_object.h"
#include "net/nfs_reactor.h"
#include "net/retry.h"
#include "pipeline/scheduler.h"

namespace streamer {

struct SessionOptions {
  SchedulerOptions scheduler;
  unsigned file_threads = 4;
  unsigned http_reactors = 2;
  unsigned http_in_flight = 8;  // per reactor
  // HTTP blocks are as large as each server likes its requests (net/request_size.h), at most
  // scheduler.block_bytes.
  bool http_blocks_follow_server = false;
  unsigned nfs_threads = 4;  // each with connections of its own
  HttpOptions http;
  NfsOptions nfs;
  RetryOptions retry;
  double hedge_percent = 5;  // most extra bytes for duplicates of slow requests; 0: none are sent
};

struct SessionStats {
  SchedulerStats scheduler;
  std::uint64_t http_requests = 0;
  std::uint64_t credential_refreshes = 0;
  std::uint64_t hedges = 0;
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
  // `folder`: see FileReader.
  void add_file(std::string path, std::uint64_t size_bytes, std::string version,
                std::string folder = {});
  void add_http(HttpTarget target, std::uint64_t size_bytes, std::string version,
                std::string version_header, bool can_refresh);
  // Asks the system's resolver for the server's addresses. Throws std::invalid_argument for a URL
  // that is none, or a server that has no address.
  void add_nfs(const std::string& url, std::uint64_t size_bytes, std::string version);
  void add_python();

  // Throws std::invalid_argument for a plan that does not fit the objects.
  void start(Plan plan);

  // --- the consumer, one thread at a time ---
  Delivery wait(double timeout_s);
  Memory take(std::uint32_t item);
  std::vector<Piece> digest_pieces(std::uint32_t item);
  void renew(std::uint32_t source, HttpTarget target);

  // What was read of an object: text that changes when its content does. Empty where unknown.
  std::string version(std::uint32_t source);

  // --- Python readers, any number of threads ---
  std::optional<Block> take_python_block();
  void finish_python_block(Block block);
  void fail_python_block(const Block& block, std::string detail);

  SessionStats stats();
  void close();

 private:
  struct State;

  State& state() const;
  bool is_forked() const;

  const pid_t owner_;
  std::unique_ptr<State> state_;
};

}  // namespace streamer
