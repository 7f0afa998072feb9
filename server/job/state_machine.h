// The life of a job: legal states, the one function that changes them, and what follows the end of an attempt. Pure:
// the clock is handed in.
//
//   from       to
//   PENDING    STARTING, FAILED, CANCELLED
//   STARTING   RUNNING, STOPPING
//   RUNNING    STOPPING
//   STOPPING   SUCCEEDED, FAILED, CANCELLED, PENDING (a restart)
//   SUSPENDED  PENDING, FAILED, CANCELLED
//   SUCCEEDED, FAILED, CANCELLED are final
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "mp/v1/job.pb.h"

namespace mp {

bool IsFinal(v1::Job::State state);
bool IsLegalTransition(v1::Job::State from, v1::Job::State to);

// Changes the state and what goes with it (times, cause, message, pending reason). FAILED_PRECONDITION, and no change,
// where the transition is not legal.
absl::Status Transition(v1::Job* job, v1::Job::State to, v1::EndCause cause, const std::string& message,
                        absl::Time now);

// What becomes of a job when every rank of its attempt has ended.
struct Outcome {
  v1::Job::State state = v1::Job::FAILED;  // SUCCEEDED, FAILED, CANCELLED or PENDING
  std::string message;
};
// `job` has its attempts, the newest with its cause set. Restarts are for causes that another try can mend, within
// restart.max_attempts; starts that a controller's restart ended do not count.
Outcome AfterAttempt(const v1::Job& job, v1::EndCause cause, const std::string& message);

// Whether another try can mend it.
bool IsRetryable(v1::EndCause cause);

// The cause to report when several are known: the one nearest to the root. A rank that lost its peer says less than the
// peer's own end.
bool IsNearerToRoot(v1::EndCause a, v1::EndCause b);

// For people: "the training data is bad".
std::string CauseText(v1::EndCause cause);

}  // namespace mp
