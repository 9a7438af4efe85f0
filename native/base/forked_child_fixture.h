// What the tests share that look at a forked child.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

namespace streamer {

// What `work` gives in a child of this process, at most 255; or, negative, the signal that ended
// it, as SIGALRM does when it hangs.
template <typename Work>
int exit_status_of_child(Work work) {
  constexpr unsigned kPatienceS = 10;
  const pid_t child = fork();
  if (child == 0) {
    alarm(kPatienceS);
    _exit(work());
  }
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace streamer
