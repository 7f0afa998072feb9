// Exit codes of mpctl, and how errors map to them.
#pragma once

#include "absl/status/status.h"
#include "mp/v1/job.pb.h"

namespace mp::client {

enum ExitCode {
  kOk = 0,
  kFailure = 1,
  kUsage = 2,
  kNotFound = 3,
  kRefused = 4,      // a bad spec, or not possible in this state
  kUnavailable = 5,  // no controller, or no answer in time
  kJobFailed = 6,
  kJobCancelled = 7,
  kAlreadyExists = 8,
  kInterrupted = 130,
};

inline constexpr char kExitCodeHelp[] =
    "Exit status: 0 ok; 1 failure; 2 usage; 3 not found; 4 spec refused, or not possible in this state;\n"
    "5 controller unavailable or no answer in time; 6 the watched job failed; 7 it was cancelled; 8 exists already;\n"
    "130 interrupted.";

int ExitCodeFor(const absl::Status& status);
int ExitCodeFor(v1::Job::State final_state);

}  // namespace mp::client
