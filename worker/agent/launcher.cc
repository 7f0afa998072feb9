// mp-rank-launcher PARENT PROGRAM ARGUMENT...: asks the kernel to kill this process when its worker dies, then becomes
// PROGRAM. posix_spawn can't ask that for a child, and the worker must not fork once gRPC runs.
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <system_error>

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fputs("usage: mp-rank-launcher PARENT_PID PROGRAM [ARGUMENT...]; it is started by mp-worker\n", stderr);
    return 2;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The worker may have died before the request.
  if (getppid() != static_cast<pid_t>(std::strtol(argv[1], nullptr, 10))) return 3;
  execvp(argv[2], argv + 2);
  std::fprintf(stderr, "mp-rank-launcher: %s: %s\n", argv[2], std::generic_category().message(errno).c_str());
  return 127;
}
