#include "base/engine_thread.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <string>

#include "base/broken_pipe.h"

namespace streamer {
namespace {

bool is_blocked(int signal_number) {
  sigset_t mask;
  pthread_sigmask(SIG_BLOCK, nullptr, &mask);
  return sigismember(&mask, signal_number) == 1;
}

// Writes to a pipe without a reader, with SIGPIPE at the default that ends the process; returns
// errno.
int write_to_broken_pipe() {
  std::array<int, 2> ends{};
  REQUIRE(pipe(ends.data()) == 0);
  close(ends[0]);
  const auto before = std::signal(SIGPIPE, SIG_DFL);
  const bool is_written = write(ends[1], "x", 1) == 1;
  const int code = is_written ? 0 : errno;
  std::signal(SIGPIPE, before);
  close(ends[1]);
  return code;
}

TEST_CASE("a thread of the engine blocks the program's signals, and SIGPIPE (regression)") {
  int code = 0;
  start_engine_thread("test", 0, [&code] {
    for (const int theirs : {SIGINT, SIGTERM, SIGALRM, SIGCHLD, SIGUSR1, SIGPIPE}) {
      CHECK(is_blocked(theirs));
    }
    code = write_to_broken_pipe();
  }).join();
  CHECK(code == EPIPE);
}

TEST_CASE("a thread of the engine receives signals of its own faults and of profilers") {
  start_engine_thread("test", 0, [] {
    for (const int ours : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGSYS, SIGABRT, SIGTRAP, SIGPROF}) {
      CHECK(!is_blocked(ours));
    }
  }).join();
}

TEST_CASE("the thread that starts another keeps its own signals") {
  start_engine_thread("test", 0, [] {}).join();
  for (const int own : {SIGINT, SIGTERM, SIGPIPE}) CHECK(!is_blocked(own));
}

TEST_CASE("a thread of the engine is named after its role and number") {
  std::array<char, 16> name{};
  start_engine_thread("http", 123, [&name] {
    pthread_getname_np(pthread_self(), name.data(), name.size());
  }).join();
  CHECK(std::string(name.data()) == "streamer-http12");
}

TEST_CASE("a thread that writes for the engine gets an error from a broken pipe, not a signal") {
  {
    const BrokenPipesIgnored here;
    CHECK(write_to_broken_pipe() == EPIPE);
  }
  CHECK(!is_blocked(SIGPIPE));
  sigset_t pending;
  sigpending(&pending);
  CHECK(sigismember(&pending, SIGPIPE) == 0);
}

TEST_CASE("a pending SIGPIPE of the program itself stays pending") {
  sigset_t broken_pipe;
  sigemptyset(&broken_pipe);
  sigaddset(&broken_pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
  raise(SIGPIPE);
  { const BrokenPipesIgnored here; }
  int taken = 0;
  sigwait(&broken_pipe, &taken);
  CHECK(taken == SIGPIPE);
  pthread_sigmask(SIG_UNBLOCK, &broken_pipe, nullptr);
}

}  // namespace
}  // namespace streamer
