// Errors on the wire: absl::Status with google.rpc details <-> grpc::Status (AIP-193).
//
// A detail is kept as a payload of the absl::Status, under the type URL of its message. Used by the server and by
// clients. Thread-safety: any thread.
#pragma once

#include <grpcpp/support/status.h>

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace mp {

struct FieldViolation {
  std::string field;        // path: "training.max_steps", "data.train[0].path"
  std::string description;  // what was wrong; what would be right
};
using Violations = std::vector<FieldViolation>;

// The status with ErrorInfo{reason, domain "mp.v1", metadata}. `reason`: UPPER_SNAKE_CASE.
absl::Status WithReason(absl::Status status, const std::string& reason,
                        const std::map<std::string, std::string>& metadata = {});

// INVALID_ARGUMENT with every violation.
absl::Status InvalidSpec(const Violations& violations);
Violations ViolationsOf(const absl::Status& status);

grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

}  // namespace mp
