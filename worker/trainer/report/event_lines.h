// TrainerEvent lines in proto3 JSON (snake_case), as proto/mp/v1/trainer.proto defines them. No LibTorch here, so that
// a test can read the lines back with Protobuf.
//
// Each function returns the event's one field, for example `"frame":{...}`; EventLine puts time and rank around it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace mp::trainer {

struct TensorLine {
  std::string layer;
  const char* kind = "INPUT";  // INPUT, WEIGHT, GRAD_OUTPUT
  double amax = 0;
  double scale = 1;
  double underflow_share = 0;
  double overflow_share = 0;
};

struct PlanLine {
  std::string name;
  std::string compute;
  std::string reason;
};

// With the line feed. `time`: seconds since the Unix epoch.
std::string EventLine(double time, int rank, const std::string& event_field);

std::string StartedField(int world_size, int64_t parameters);
std::string PrecisionPlanField(const std::vector<PlanLine>& plan);
std::string FrameField(int64_t step, const std::map<std::string, double>& scalars,
                       const std::vector<TensorLine>& tensors);
std::string EvaluationField(int64_t step, const std::map<std::string, double>& metrics);
std::string CheckpointRequestField(int64_t step, const std::string& path);
std::string CheckpointSavedField(int64_t step, const std::string& path, int64_t bytes, double seconds);
std::string CheckpointDamagedField(const std::string& path, const std::string& reason);
std::string ResumedField(int64_t step, const std::string& path);
std::string FinishedField(int64_t step, const std::map<std::string, double>& metrics);
std::string FailedField(const std::string& cause, const std::string& message, int64_t step);

}  // namespace mp::trainer
