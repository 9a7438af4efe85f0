// Runs code in a forked child, for tests.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

namespace streamer {

// Runs `work` in a child of this process and returns its result, at most 255. Returns the negative
// number of the signal if one ended the child; SIGALRM ends a child that hangs.
template <typename Work>
int exit_status_of_child(Work work) {
  constexpr unsigned kTimeoutS = 10;
  const pid_t child = fork();
  if (child == 0) {
    alarm(kTimeoutS);
    _exit(work());
  }
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace streamer
