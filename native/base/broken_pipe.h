// Blocks SIGPIPE on a thread of the program while this thread writes to sockets for the engine.
//
// The engine's own threads block SIGPIPE for good (base/engine_thread.h). On a thread of the
// program the signal mask is restored at the end; a SIGPIPE that the engine's writes raised is
// removed first.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <ctime>

namespace streamer {

class BrokenPipesIgnored {
 public:
  BrokenPipesIgnored() {
    sigemptyset(&broken_pipe_);
    sigaddset(&broken_pipe_, SIGPIPE);
    was_pending_ = is_pending();
    pthread_sigmask(SIG_BLOCK, &broken_pipe_, &before_);
  }
  ~BrokenPipesIgnored() {
    const timespec at_once{};
    if (!was_pending_ && is_pending()) sigtimedwait(&broken_pipe_, nullptr, &at_once);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  BrokenPipesIgnored(const BrokenPipesIgnored&) = delete;
  BrokenPipesIgnored& operator=(const BrokenPipesIgnored&) = delete;

 private:
  static bool is_pending() {
    sigset_t pending;
    return sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE) == 1;
  }

  sigset_t broken_pipe_{};
  sigset_t before_{};
  bool was_pending_ = false;
};

}  // namespace streamer
