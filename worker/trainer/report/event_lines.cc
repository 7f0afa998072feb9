#include "worker/trainer/report/event_lines.h"

#include "worker/trainer/json/json.h"

namespace mp::trainer {
namespace {

JsonValue Numbers(const std::map<std::string, double>& values) {
  JsonValue::Object object;
  for (const auto& [name, value] : values) object.emplace_back(name, value);
  return object;
}

std::string Field(const char* name, const JsonValue& value) {
  return "\"" + std::string(name) + "\":" + value.ToString();
}

std::string Int64(int64_t value) { return std::to_string(value); }

}  // namespace

std::string EventLine(double time, int rank, const std::string& event_field) {
  std::string line = "{\"time\":";
  AppendJsonDouble(time, &line);
  return line + ",\"rank\":" + std::to_string(rank) + "," + event_field + "}\n";
}

std::string StartedField(int world_size, int64_t parameters) {
  return Field("started", JsonValue::Object{{"world_size", world_size}, {"parameters", Int64(parameters)}});
}

std::string PrecisionPlanField(const std::vector<PlanLine>& plan) {
  JsonValue::Array layers;
  for (const PlanLine& layer : plan) {
    layers.push_back(JsonValue::Object{{"name", layer.name}, {"compute", layer.compute}, {"reason", layer.reason}});
  }
  return Field("precision_plan", JsonValue::Object{{"layers", std::move(layers)}});
}

std::string FrameField(int64_t step, const std::map<std::string, double>& scalars,
                       const std::vector<TensorLine>& tensors) {
  JsonValue::Array list;
  list.reserve(tensors.size());
  for (const TensorLine& tensor : tensors) {
    list.push_back(JsonValue::Object{{"layer", tensor.layer},
                                     {"kind", tensor.kind},
                                     {"amax", tensor.amax},
                                     {"scale", tensor.scale},
                                     {"underflow_share", tensor.underflow_share},
                                     {"overflow_share", tensor.overflow_share}});
  }
  return Field("frame",
               JsonValue::Object{{"step", Int64(step)}, {"scalars", Numbers(scalars)}, {"tensors", std::move(list)}});
}

std::string EvaluationField(int64_t step, const std::map<std::string, double>& metrics) {
  return Field("evaluation", JsonValue::Object{{"step", Int64(step)}, {"metrics", Numbers(metrics)}});
}

std::string CheckpointRequestField(int64_t step, const std::string& path) {
  return Field("checkpoint_request", JsonValue::Object{{"step", Int64(step)}, {"path", path}});
}

std::string CheckpointSavedField(int64_t step, const std::string& path, int64_t bytes, double seconds) {
  return Field("checkpoint_saved",
               JsonValue::Object{{"step", Int64(step)}, {"path", path}, {"bytes", Int64(bytes)}, {"seconds", seconds}});
}

std::string CheckpointDamagedField(const std::string& path, const std::string& reason) {
  return Field("checkpoint_damaged", JsonValue::Object{{"path", path}, {"reason", reason}});
}

std::string ResumedField(int64_t step, const std::string& path) {
  return Field("resumed", JsonValue::Object{{"step", Int64(step)}, {"path", path}});
}

std::string FinishedField(int64_t step, const std::map<std::string, double>& metrics) {
  return Field("finished", JsonValue::Object{{"step", Int64(step)}, {"metrics", Numbers(metrics)}});
}

std::string FailedField(const std::string& cause, const std::string& message, int64_t step) {
  return Field("failed", JsonValue::Object{{"cause", cause}, {"message", message}, {"step", Int64(step)}});
}

}  // namespace mp::trainer
