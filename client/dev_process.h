// Detached processes of `mpctl dev`, known by pid and start time.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace mp::client {

struct DevProcess {
  std::string name;  // "controller", "worker-0"
  pid_t pid = 0;
  int64_t start_time = 0;  // clock ticks since boot, of /proc/PID/stat
  std::string log;
};

// Starts argv in a session of its own with stdin from /dev/null and output appended to `log`.
absl::StatusOr<DevProcess> StartDetached(const std::string& name, const std::vector<std::string>& argv,
                                         const std::string& log);

bool IsRunning(const DevProcess& process);
// SIGTERM, and SIGKILL to those that are left after `grace`. Returns when all have ended.
void EndAll(const std::vector<DevProcess>& processes, absl::Duration grace);
// Until the process ends or `timeout` is over; true when it ended.
bool WaitForEnd(const DevProcess& process, absl::Duration timeout);
// The last lines of a file, for messages.
std::string LastLines(const std::string& path, int lines);

}  // namespace mp::client
