#include "worker/agent/process_tree.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace mp::agent {
namespace {

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

struct ProcessStatus {
  char state = '?';
  pid_t parent = 0;
};

// From /proc/PID/stat: "pid (name) state ppid ...", where the name may hold anything.
ProcessStatus StatusOf(pid_t pid) {
  ProcessStatus status;
  const std::string text = ReadAll(absl::StrCat("/proc/", pid, "/stat"));
  const size_t end = text.rfind(')');
  if (end == std::string::npos || end + 4 >= text.size()) return status;
  status.state = text[end + 2];
  status.parent = static_cast<pid_t>(std::strtol(text.c_str() + end + 4, nullptr, 10));
  return status;
}

std::vector<pid_t> AllProcesses() {
  std::vector<pid_t> all;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    pid_t pid = 0;
    if (absl::SimpleAtoi(entry.path().filename().string(), &pid)) all.push_back(pid);
  }
  return all;
}

}  // namespace

std::vector<pid_t> FindByToken(const std::string& token, bool prefix) {
  const std::string wanted = absl::StrCat("MP_RANK_TOKEN=", token);
  std::vector<pid_t> found;
  for (const pid_t pid : AllProcesses()) {
    if (pid == getpid()) continue;
    const std::string environment = ReadAll(absl::StrCat("/proc/", pid, "/environ"));
    size_t at = environment.find(wanted);
    while (at != std::string::npos) {
      const bool starts = at == 0 || environment[at - 1] == '\0';
      const bool ends = prefix || at + wanted.size() == environment.size() || environment[at + wanted.size()] == '\0';
      if (starts && ends) break;
      at = environment.find(wanted, at + 1);
    }
    if (at == std::string::npos) continue;
    const char state = StatusOf(pid).state;
    if (state != 'Z' && state != 'X' && state != '?') found.push_back(pid);
  }
  return found;
}

std::vector<pid_t> FindStrayChildren(const std::vector<pid_t>& known) {
  std::vector<pid_t> found;
  for (const pid_t pid : AllProcesses()) {
    const ProcessStatus status = StatusOf(pid);
    if (status.parent != getpid() || status.state == 'Z' || status.state == 'X') continue;
    if (std::find(known.begin(), known.end(), pid) == known.end()) found.push_back(pid);
  }
  return found;
}

}  // namespace mp::agent
