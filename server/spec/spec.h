// From what a user submits to the resolved spec that is stored, planned, placed and run.
//
//   absl::StatusOr<mp::v1::JobSpec> spec = mp::ResolveSpec(request);
//
// All violations of a spec are reported together: unknown fields, wrong types, values out of range, combinations that
// can't work. Pure functions; any thread.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "mp/v1/job_service.pb.h"
#include "server/api/status_details.h"

namespace mp {

// Parses (or takes) the spec, applies the overrides, fills defaults, checks. INVALID_ARGUMENT with field violations.
absl::StatusOr<v1::JobSpec> ResolveSpec(const v1::CreateJobRequest& request);

// The steps of ResolveSpec.
//
// Reads YAML or JSON into `spec` field by field; what can't be read is a violation and leaves its field unset.
void ParseSpecDocument(std::string_view document, v1::JobSpec* spec, Violations* violations);
// "training.max_steps=10": the value is read as YAML.
void ApplyOverride(std::string_view assignment, v1::JobSpec* spec, Violations* violations);
// Fills every absent leaf with the default that job.proto names.
void FillDefaults(v1::JobSpec* spec);
// Checks ranges and combinations of a spec with defaults filled in.
void CheckSpec(const v1::JobSpec& spec, Violations* violations);
// The model's config as far as it can be checked without files. `tokens`: in a micro-batch of a rank.
void CheckModelConfig(const v1::JobSpec& spec, Violations* violations);

}  // namespace mp
