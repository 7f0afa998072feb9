#include "worker/trainer/optim/optimizer.h"

#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "worker/trainer/optim/adam.h"
#include "worker/trainer/optim/schedule.h"
#include "worker/trainer/optim/sgd.h"

namespace mp::trainer {

Optimizer::Optimizer(const TrainingConfig& training, const std::vector<ShardView>& shards,
                     const std::vector<std::string>& state_names)
    : training_(training),
      applied_steps_(at::zeros({}, at::TensorOptions().dtype(at::kLong))),
      learning_rate_(at::zeros({}, at::TensorOptions().dtype(at::kDouble))) {
  for (const std::string& name : state_names) {
    for (const ShardView& shard : shards) state_[name].push_back(at::zeros_like(shard.master));
  }
}

void Optimizer::Step(std::vector<ShardView>& shards, const GradientSummary& gradients) {
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
