// A training step that is recorded once and launched as one graph from then on. The first steps run as they are:
// optimizer state, communicators and library workspaces must exist before a recording.
//
// Thread-safety: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "worker/trainer/device/device.h"
#include "worker/trainer/loop/step_metrics.h"
#include "worker/trainer/model/model.h"

namespace mp::trainer {

class StepGraph {
 public:
  using Compute = std::function<StepResult(const std::vector<Batch>&)>;

  // `why_not` not empty: never records, and says so. `device` is not owned.
  StepGraph(Device* device, const std::string& why_not);

  // One step. `compute` must do the same for every batch of the same shapes. Where recording it fails, the reason is
  // printed, `abandon` is called, and it runs unrecorded from then on.
  StepResult Run(const std::vector<Batch>& batches, const Compute& compute, const std::function<void()>& abandon);

 private:
  static constexpr int kStepsBefore = 3;

  void Record(const std::vector<Batch>& batches, const Compute& compute, const std::function<void()>& abandon);
  void GiveUp(const std::string& why);

  Device* device_;
  bool gave_up_ = false;
  int steps_ = 0;
  std::unique_ptr<Device::Graph> graph_;
  std::vector<Batch> inputs_;  // what the graph reads
  StepResult result_;          // what it writes
};

}  // namespace mp::trainer
