// How every thread of the engine starts: with a name, so that a profiler and the leak test can tell
// whose it is, and without the signals of the program.
//
// Signals are for the program's own threads: Python runs handlers on its main thread, and a handler
// in C++ expects anything but ours. So all are blocked but those that a thread's own fault raises,
// of which whoever reports crashes must hear, and those with which profilers and debuggers look at
// each thread.
//
// SIGPIPE is why this is no matter of taste. libcurl's own guard is off (CURLOPT_NOSIGNAL), and
// OpenSSL writes with write(2): where a program has that signal at the system's default, a server
// that resets a connection would end the process.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <string>
#include <thread>
#include <utility>

namespace streamer {

// Blocks on this thread what is not for an engine's, as long as it lives.
class ProgramSignalsBlocked {
 public:
  ProgramSignalsBlocked() {
    sigset_t blocked;
    sigfillset(&blocked);
    for (const int ours : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGSYS, SIGABRT, SIGTRAP, SIGPROF}) {
      sigdelset(&blocked, ours);
    }
    pthread_sigmask(SIG_BLOCK, &blocked, &before_);
  }
  ~ProgramSignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  ProgramSignalsBlocked(const ProgramSignalsBlocked&) = delete;
  ProgramSignalsBlocked& operator=(const ProgramSignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

// Throws std::system_error when the system gives no further thread.
template <typename Work>
std::thread start_engine_thread(const std::string& role, unsigned index, Work work) {
  // A thread is born with the mask of the one that starts it, as are those that libcurl starts from
  // ours: set any later, a signal could come before.
  const ProgramSignalsBlocked inherited;
  // Linux keeps 15 characters; "streamer-http12" just fits.
  std::string name = ("streamer-" + role + std::to_string(index)).substr(0, 15);
  return std::thread([name = std::move(name), work = std::move(work)]() mutable {
    pthread_setname_np(pthread_self(), name.c_str());
    work();
  });
}

}  // namespace streamer
