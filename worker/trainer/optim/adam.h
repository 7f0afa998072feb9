// AdamW (Loshchilov, Hutter 2019) and Adam (Kingma, Ba 2015) as torch.optim computes them:
//   g = gradient * factor
//   AdamW: p = p * (1 - lr * weight_decay)        Adam: g = g + weight_decay * p       where weight decay applies
//   m = b1 * m + (1 - b1) * g;  v = b2 * v + (1 - b2) * g^2
//   p = p - lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps)
#pragma once

#include <vector>

#include "worker/trainer/optim/optimizer.h"

namespace mp::trainer {

class Adam : public Optimizer {
 public:
  // State: "exp_avg" (m), "exp_avg_sq" (v).
  Adam(const TrainingConfig& training, const std::vector<ShardView>& shards)
      : Optimizer(training, shards, {"exp_avg", "exp_avg_sq"}) {}

 protected:
  void Update(const Range& range, float factor, double learning_rate, int64_t applied) override;
  void UpdateFused(Ranges& ranges, const StepTensors& step) override;
};

}  // namespace mp::trainer
