// The optimizers of torch.optim on flat fp32 shards, one pass over memory each: loops of ours on a CPU, ATen's fused
// kernels elsewhere.
//
// t counts applied steps from 1. With found_inf nothing changes, t neither. Scale factor, found_inf and t are tensors:
// the step does not wait for a device.
//
// Thread-safety: one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "worker/trainer/config/job.h"
#include "worker/trainer/optim/gradients.h"
#include "worker/trainer/sharding/sharded_model.h"

namespace mp::trainer {

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // Updates the master shards. The learning rate follows the training's schedule.
  void Step(std::vector<ShardView>& shards, const GradientSummary& gradients);

  // fp64 []: of the last Step, or of the one that it skipped.
  const at::Tensor& learning_rate() const { return learning_rate_; }
  // int64 []: updates applied so far.
  const at::Tensor& applied_steps() const { return applied_steps_; }
  // What is kept of each parameter, by torch.optim's name ("exp_avg"): fp32 [shard_size] in the order of shards.
  const std::map<std::string, std::vector<at::Tensor>>& state() const { return state_; }

 protected:
  Optimizer(const TrainingConfig& training, const std::vector<ShardView>& shards,
            const std::vector<std::string>& state_names);

  // One range of one shard: fp32 values of parameter, gradient and state.
  struct Range {
    float* parameter;
    const float* gradient;
    std::vector<float*> state;  // in the alphabetical order of names
    int64_t count;
    double weight_decay;
  };
  // factor: unscales and clips. applied: updates before this one.
  virtual void Update(const Range& range, float factor, double learning_rate, int64_t applied) = 0;

  // Many ranges with one weight decay, for ATen's fused kernels.
  struct Ranges {
    std::vector<at::Tensor> parameters;
    std::vector<at::Tensor> gradients;
    std::vector<std::vector<at::Tensor>> state;  // in the alphabetical order of names
    double weight_decay = 0;
  };
  // All fp32 []. scale: divides gradients. step: this update's number from 1.
  struct StepTensors {
    at::Tensor scale;
    at::Tensor found_inf;
    at::Tensor learning_rate;
    at::Tensor step;
  };
  virtual void UpdateFused(Ranges& ranges, const StepTensors& step) = 0;

  const TrainingConfig training_;

 private:
  void StepByLoops(std::vector<ShardView>& shards, const GradientSummary& gradients);
  void StepByFusedKernels(std::vector<ShardView>& shards, const GradientSummary& gradients);

  at::Tensor applied_steps_;
  at::Tensor learning_rate_;
  std::map<std::string, std::vector<at::Tensor>> state_;
};

// training.optim, with zeros for state.
std::unique_ptr<Optimizer> MakeOptimizer(const TrainingConfig& training, const std::vector<ShardView>& shards);

}  // namespace mp::trainer
