#include "worker/agent/rank.h"

#include <fcntl.h>
#include <google/protobuf/util/json_util.h>
#include <spawn.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace mp::agent {
namespace {

constexpr size_t kMaxLine = size_t{16} << 20;

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (const std::string& text : strings) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

absl::StatusOr<pid_t> Spawn(const SpawnRequest& request) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  const auto destroy = absl::MakeCleanup([&] {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  });
  posix_spawn_file_actions_addchdir_np(&actions, request.working_directory.c_str());
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, request.output_fd, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, request.output_fd, STDERR_FILENO);
  // All our descriptors are close-on-exec; a dup2 onto itself takes that away in the child.
  for (const int fd : request.inherited) posix_spawn_file_actions_adddup2(&actions, fd, fd);
  sigset_t all;
  sigset_t none;
  sigfillset(&all);
  sigemptyset(&none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  std::vector<char*> argv = Pointers(request.argv);
  std::vector<char*> environment = Pointers(request.environment);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, request.argv[0].c_str(), &actions, &attributes, argv.data(), environment.data());
  if (error != 0) return absl::ErrnoToStatus(error, absl::StrCat("can't start ", request.argv[0]));
  return pid;
}

void ParseReports(const std::string& data, Rank* rank, std::vector<v1::TrainerEvent>* events,
                  std::vector<std::string>* bad) {
  rank->report_rest += data;
  size_t start = 0;
  size_t end = 0;
  while ((end = rank->report_rest.find('\n', start)) != std::string::npos) {
    const std::string line = rank->report_rest.substr(start, end - start);
    start = end + 1;
    if (line.empty()) continue;
    google::protobuf::util::JsonParseOptions options;
    options.ignore_unknown_fields = true;
    v1::TrainerEvent event;
    // Protobuf's reader lets text pass that is not UTF-8, and the controller could then not read the message.
    if (nlohmann::json::accept(line) && google::protobuf::util::JsonStringToMessage(line, &event, options).ok() &&
        event.event_case() != v1::TrainerEvent::EVENT_NOT_SET) {
      events->push_back(std::move(event));
    } else {
      bad->push_back(absl::StrCat("a report line is ignored: ", line.substr(0, 200)));
    }
  }
  rank->report_rest.erase(0, start);
  if (rank->report_rest.size() > kMaxLine) {
    bad->push_back("a report line of more than 16 MiB is ignored");
    rank->report_rest.clear();
  }
}

}  // namespace mp::agent
