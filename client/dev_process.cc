#include "client/dev_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <iterator>
#include <sstream>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace mp::client {
namespace {

// Start time and state of /proc/PID/stat; start 0 where there is no such process.
std::pair<int64_t, char> ProcessStart(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const size_t end = text.rfind(')');
  if (end == std::string::npos) return {0, '?'};
  std::istringstream fields(text.substr(end + 2));
  std::string field;
  char state = '?';
  fields >> state;
  constexpr int kStartTime = 22;  // counted from 1, the state is 3
  for (int i = 4; i <= kStartTime; ++i) fields >> field;
  return {std::strtoll(field.c_str(), nullptr, 10), state};
}

}  // namespace

absl::StatusOr<DevProcess> StartDetached(const std::string& name, const std::vector<std::string>& argv,
                                         const std::string& log) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  const auto destroy = absl::MakeCleanup([&] {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  });
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK);
  std::vector<char*> pointers;
  pointers.reserve(argv.size() + 1);
  for (const std::string& argument : argv) pointers.push_back(const_cast<char*>(argument.c_str()));
  pointers.push_back(nullptr);
  DevProcess process{name, 0, 0, log};
  const int error = posix_spawn(&process.pid, argv[0].c_str(), &actions, &attributes, pointers.data(), environ);
  if (error != 0) return absl::ErrnoToStatus(error, absl::StrCat("can't start ", argv[0]));
  process.start_time = ProcessStart(process.pid).first;
  return process;
}

bool IsRunning(const DevProcess& process) {
  const auto [start, state] = ProcessStart(process.pid);
  return start != 0 && start == process.start_time && state != 'Z' && state != 'X';
}

bool WaitForEnd(const DevProcess& process, absl::Duration timeout) {
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, process.pid, 0));
  if (fd < 0) return true;
  const auto closer = absl::MakeCleanup([fd] { close(fd); });
  if (!IsRunning(process)) return true;
  pollfd ended = {fd, POLLIN, 0};
  return poll(&ended, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout))) == 1;
}

void EndAll(const std::vector<DevProcess>& processes, absl::Duration grace) {
  const absl::Time kill_at = absl::Now() + grace;
  for (const DevProcess& process : processes) {
    if (IsRunning(process)) kill(process.pid, SIGTERM);
  }
  for (const DevProcess& process : processes) {
    if (WaitForEnd(process, std::max(absl::ZeroDuration(), kill_at - absl::Now()))) continue;
    if (IsRunning(process)) kill(process.pid, SIGKILL);
    WaitForEnd(process, absl::Seconds(5));
  }
}

std::string LastLines(const std::string& path, int lines) {
  std::ifstream file(path);
  std::vector<std::string> all;
  for (std::string line; std::getline(file, line);) all.push_back(line);
  std::string text;
  for (size_t i = all.size() > static_cast<size_t>(lines) ? all.size() - static_cast<size_t>(lines) : 0; i < all.size();
       ++i)
    absl::StrAppend(&text, "  ", all[i], "\n");
  return text;
}

}  // namespace mp::client
