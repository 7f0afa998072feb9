#include "worker/trainer/optim/optimizer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "worker/trainer/device/kernels.h"
#include "worker/trainer/optim/adam.h"
#include "worker/trainer/optim/schedule.h"
#include "worker/trainer/optim/sgd.h"

namespace mp::trainer {

Optimizer::Optimizer(const TrainingConfig& training, const std::vector<ShardView>& shards,
                     const std::vector<std::string>& state_names)
    : training_(training),
      applied_steps_(at::zeros({}, shards.front().master.options().dtype(at::kLong))),
      learning_rate_(at::zeros({}, shards.front().master.options().dtype(at::kDouble))) {
  for (const std::string& name : state_names) {
    for (const ShardView& shard : shards) state_[name].push_back(at::zeros_like(shard.master));
  }
}

void Optimizer::Step(std::vector<ShardView>& shards, const GradientSummary& gradients) {
  UsesCpuLoops(applied_steps_) ? StepByLoops(shards, gradients) : StepByFusedKernels(shards, gradients);
}

void Optimizer::StepByLoops(std::vector<ShardView>& shards, const GradientSummary& gradients) {
  // On the CPU reading a tensor waits for nothing.
  const int64_t applied = *applied_steps_.const_data_ptr<int64_t>();
  const double learning_rate = LearningRate(training_, applied);
  learning_rate_.fill_(learning_rate);
  if (*gradients.found_inf.const_data_ptr<float>() > 0) return;
  const float factor = *gradients.factor.const_data_ptr<float>();
  for (size_t i = 0; i < shards.size(); ++i) {
    for (const ShardView::Range& part : shards[i].ranges) {
      Range range = {shards[i].master.mutable_data_ptr<float>() + part.begin,
                     shards[i].gradient.const_data_ptr<float>() + part.begin,
                     {},
                     part.end - part.begin,
                     part.weight_decay ? training_.weight_decay : 0.0};
      for (auto& [name, tensors] : state_) range.state.push_back(tensors[i].mutable_data_ptr<float>() + part.begin);
      Update(range, factor, learning_rate, applied);
    }
  }
  applied_steps_.add_(1);
}

void Optimizer::StepByFusedKernels(std::vector<ShardView>& shards, const GradientSummary& gradients) {
  learning_rate_.copy_(LearningRate(training_, applied_steps_));
  const StepTensors step = {gradients.factor.reciprocal(), gradients.found_inf, learning_rate_.to(at::kFloat),
                            (applied_steps_ + 1).to(at::kFloat)};
  for (const bool decays : {false, true}) {
    Ranges ranges;
    ranges.state.resize(state_.size());
    ranges.weight_decay = decays ? training_.weight_decay : 0.0;
    for (size_t i = 0; i < shards.size(); ++i) {
      for (const ShardView::Range& part : shards[i].ranges) {
        if (part.weight_decay != decays) continue;
        const auto cut = [&](const at::Tensor& tensor) { return tensor.slice(0, part.begin, part.end); };
        ranges.parameters.push_back(cut(shards[i].master));
        ranges.gradients.push_back(cut(shards[i].gradient));
        size_t name = 0;
        for (const auto& [unused, tensors] : state_) ranges.state[name++].push_back(cut(tensors[i]));
      }
    }
    if (!ranges.parameters.empty()) UpdateFused(ranges, step);
  }
  applied_steps_.add_(gradients.found_inf.eq(0));
}

std::unique_ptr<Optimizer> MakeOptimizer(const TrainingConfig& training, const std::vector<ShardView>& shards) {
  switch (training.optim) {
    case TrainingConfig::Optimizer::kSgd:
      return std::make_unique<Sgd>(training, shards);
    case TrainingConfig::Optimizer::kAdam:
    case TrainingConfig::Optimizer::kAdamW:
      break;
  }
  return std::make_unique<Adam>(training, shards);
}

}  // namespace mp::trainer
