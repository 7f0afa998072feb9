#include "client/exit_code.h"

namespace mp::client {

int ExitCodeFor(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kOk;
    case absl::StatusCode::kNotFound:
      return kNotFound;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
      return kRefused;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return kUnavailable;
    case absl::StatusCode::kAlreadyExists:
      return kAlreadyExists;
    default:
      return kFailure;
  }
}

int ExitCodeFor(v1::Job::State final_state) {
  switch (final_state) {
    case v1::Job::SUCCEEDED:
      return kOk;
    case v1::Job::CANCELLED:
      return kJobCancelled;
    default:
      return kJobFailed;
  }
}

}  // namespace mp::client
