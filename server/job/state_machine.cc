#include "server/job/state_machine.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace mp {
namespace {

using State = v1::Job::State;

google::protobuf::Timestamp ToProto(absl::Time time) {
  google::protobuf::Timestamp stamp;
  const int64_t nanos = absl::ToUnixNanos(time);
  stamp.set_seconds(nanos / 1000000000);
  stamp.set_nanos(static_cast<int32_t>(nanos % 1000000000));
  return stamp;
}

// Higher is nearer to the root.
int Rank(v1::EndCause cause) {
  switch (cause) {
    case v1::END_CAUSE_CANCELLED:
    case v1::END_CAUSE_TIME_LIMIT:
      return 9;
    // What is missed on workers afterwards comes from the restart.
    case v1::END_CAUSE_CONTROLLER_RESTARTED:
      return 8;
    case v1::END_CAUSE_MISSING_FILE:
    case v1::END_CAUSE_BAD_CONFIG:
    case v1::END_CAUSE_BAD_DATA:
    case v1::END_CAUSE_CHECKPOINT:
    case v1::END_CAUSE_NON_FINITE:
    case v1::END_CAUSE_OUT_OF_MEMORY:
      return 7;
    case v1::END_CAUSE_WORKER_LOST:
      return 6;
    case v1::END_CAUSE_RANK_DIED:
      return 5;
    case v1::END_CAUSE_START_FAILED:
      return 4;
    case v1::END_CAUSE_PEER_LOST:
      return 3;
    case v1::END_CAUSE_SUCCEEDED:
      return 1;
    default:
      return 0;
  }
}

}  // namespace

bool IsFinal(State state) {
  return state == v1::Job::SUCCEEDED || state == v1::Job::FAILED || state == v1::Job::CANCELLED;
}

bool IsLegalTransition(State from, State to) {
  switch (from) {
    case v1::Job::PENDING:
      return to == v1::Job::STARTING || to == v1::Job::FAILED || to == v1::Job::CANCELLED;
    case v1::Job::STARTING:
      return to == v1::Job::RUNNING || to == v1::Job::STOPPING;
    case v1::Job::RUNNING:
      return to == v1::Job::STOPPING;
    case v1::Job::STOPPING:
      return IsFinal(to) || to == v1::Job::PENDING;
    case v1::Job::SUSPENDED:
      return to == v1::Job::PENDING || to == v1::Job::FAILED || to == v1::Job::CANCELLED;
    default:
      return false;
  }
}

absl::Status Transition(v1::Job* job, State to, v1::EndCause cause, const std::string& message, absl::Time now) {
  if (!IsLegalTransition(job->state(), to)) {
    return absl::FailedPreconditionError(absl::StrCat("job ", job->name(), " is ", v1::Job::State_Name(job->state()),
                                                      "; it can't become ", v1::Job::State_Name(to)));
  }
  job->set_state(to);
  job->set_message(message);
  job->clear_pending_reason();
  if (to == v1::Job::STOPPING || IsFinal(to)) {
    job->set_stop_cause(cause);
  } else {
    job->clear_stop_cause();
  }
  if (to == v1::Job::RUNNING && !job->has_start_time()) *job->mutable_start_time() = ToProto(now);
  if (IsFinal(to)) *job->mutable_end_time() = ToProto(now);
  return absl::OkStatus();
}

bool IsRetryable(v1::EndCause cause) {
  switch (cause) {
    case v1::END_CAUSE_RANK_DIED:
    case v1::END_CAUSE_WORKER_LOST:
    case v1::END_CAUSE_OUT_OF_MEMORY:
    case v1::END_CAUSE_PEER_LOST:
    case v1::END_CAUSE_CHECKPOINT:
    case v1::END_CAUSE_START_FAILED:
    case v1::END_CAUSE_CONTROLLER_RESTARTED:
      return true;
    default:
      return false;
  }
}

bool IsNearerToRoot(v1::EndCause a, v1::EndCause b) { return Rank(a) > Rank(b); }

Outcome AfterAttempt(const v1::Job& job, v1::EndCause cause, const std::string& message) {
  if (cause == v1::END_CAUSE_SUCCEEDED) return {v1::Job::SUCCEEDED, message};
  if (cause == v1::END_CAUSE_CANCELLED) return {v1::Job::CANCELLED, message};
  if (!IsRetryable(cause)) return {v1::Job::FAILED, message};
  const auto counted = std::count_if(job.attempts().begin(), job.attempts().end(), [](const v1::Attempt& attempt) {
    return attempt.cause() != v1::END_CAUSE_CONTROLLER_RESTARTED;
  });
  const int budget = job.spec().restart().max_attempts();
  if (cause != v1::END_CAUSE_CONTROLLER_RESTARTED && counted >= budget) {
    return {v1::Job::FAILED, absl::StrCat(message, " (attempt ", counted, " of ", budget, ", none left)")};
  }
  return {v1::Job::PENDING, absl::StrCat(message, "; restarts from the latest checkpoint")};
}

std::string CauseText(v1::EndCause cause) {
  switch (cause) {
    case v1::END_CAUSE_SUCCEEDED:
      return "every rank ended well";
    case v1::END_CAUSE_CANCELLED:
      return "cancelled by the user";
    case v1::END_CAUSE_RANK_DIED:
      return "a rank died";
    case v1::END_CAUSE_WORKER_LOST:
      return "a worker was lost";
    case v1::END_CAUSE_OUT_OF_MEMORY:
      return "out of memory";
    case v1::END_CAUSE_NON_FINITE:
      return "loss or gradients are not finite";
    case v1::END_CAUSE_PEER_LOST:
      return "a rank lost its peers";
    case v1::END_CAUSE_BAD_DATA:
      return "the training data is bad";
    case v1::END_CAUSE_BAD_CONFIG:
      return "the trainer refused the job";
    case v1::END_CAUSE_MISSING_FILE:
      return "a file is missing";
    case v1::END_CAUSE_CHECKPOINT:
      return "a checkpoint could not be written or read";
    case v1::END_CAUSE_TIME_LIMIT:
      return "the time limit is reached";
    case v1::END_CAUSE_START_FAILED:
      return "the ranks could not be started";
    case v1::END_CAUSE_CONTROLLER_RESTARTED:
      return "the controller was restarted during the start";
    default:
      return "unknown cause";
  }
}

}  // namespace mp
