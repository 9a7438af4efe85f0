// Starts every thread of the engine: with a name, so that a profiler and the leak test can tell its
// owner, and with the program's signals blocked.
//
// Signals belong to the program's own threads: Python runs handlers on its main thread, and a
// handler in C++ does not expect to run on a thread of the engine. Two kinds stay unblocked:
// signals that a fault of the thread itself raises, because crash reporters need them, and signals
// that profilers and debuggers send to each thread.
//
// SIGPIPE must be blocked. libcurl's own guard is off (CURLOPT_NOSIGNAL), and OpenSSL writes with
// write(2): in a program that leaves SIGPIPE at the system's default, a server that resets a
// connection would end the process.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <string>
#include <thread>
#include <utility>

namespace streamer {

// Blocks the program's signals on the calling thread until it is destroyed.
class ProgramSignalsBlocked {
 public:
  ProgramSignalsBlocked() {
    sigset_t blocked;
    sigfillset(&blocked);
    for (const int unblocked :
         {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGSYS, SIGABRT, SIGTRAP, SIGPROF}) {
      sigdelset(&blocked, unblocked);
    }
    pthread_sigmask(SIG_BLOCK, &blocked, &before_);
  }
  ~ProgramSignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  ProgramSignalsBlocked(const ProgramSignalsBlocked&) = delete;
  ProgramSignalsBlocked& operator=(const ProgramSignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

// Throws std::system_error if the system cannot start another thread.
template <typename Work>
std::thread start_engine_thread(const std::string& role, unsigned index, Work work) {
  // A new thread inherits the signal mask of the thread that starts it; this also holds for threads
  // that libcurl starts from ours. If the new thread set its own mask, a signal could arrive first.
  const ProgramSignalsBlocked inherited;
  // Linux keeps 15 characters; "streamer-http12" just fits.
  std::string name = ("streamer-" + role + std::to_string(index)).substr(0, 15);
  return std::thread([name = std::move(name), work = std::move(work)]() mutable {
    pthread_setname_np(pthread_self(), name.c_str());
    work();
  });
}

}  // namespace streamer
