// Stochastic gradient descent with momentum as torch.optim.SGD computes it:
//   g = gradient * factor + weight_decay * p        where weight decay applies
//   b = momentum * b + g;  p = p - lr * b           without momentum: p = p - lr * g
#pragma once

#include <vector>

#include "worker/trainer/optim/optimizer.h"

namespace mp::trainer {

class Sgd : public Optimizer {
 public:
  // State: "momentum_buffer" (b) where there is momentum.
  Sgd(const TrainingConfig& training, const std::vector<ShardView>& shards)
      : Optimizer(training, shards,
                  training.momentum > 0 ? std::vector<std::string>{"momentum_buffer"} : std::vector<std::string>{}) {}

 protected:
  void Update(const Range& range, float factor, double learning_rate, int64_t applied) override;
  void UpdateFused(Ranges& ranges, const StepTensors& step) override;
};

}  // namespace mp::trainer
