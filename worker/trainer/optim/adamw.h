// AdamW (Loshchilov, Hutter 2019) as torch.optim.AdamW computes it, on flat fp32 shards, one pass over memory:
//   g = gradient * factor
//   p = p * (1 - lr * weight_decay)          where weight decay applies
//   m = b1 * m + (1 - b1) * g;  v = b2 * v + (1 - b2) * g^2
//   p = p - lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps)
// t counts applied steps from 1. With found_inf nothing changes, t neither. Scale factor, found_inf and t are tensors:
// the step does not wait for a device.
//
// Thread-safety: one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "worker/trainer/config/job.h"
#include "worker/trainer/optim/gradients.h"
#include "worker/trainer/sharding/sharded_model.h"

namespace mp::trainer {

class AdamW {
 public:
  // Moments of zeros for each shard. The learning rate follows `training`'s schedule.
  AdamW(const TrainingConfig& training, const std::vector<ShardView>& shards);

  void Step(std::vector<ShardView>& shards, const GradientSummary& gradients);

  // int64 []: updates applied so far.
  const at::Tensor& applied_steps() const { return applied_steps_; }
  // Moments in the order of shards, fp32 [shard_size].
  std::vector<at::Tensor>& exp_avg() { return exp_avg_; }
  std::vector<at::Tensor>& exp_avg_sq() { return exp_avg_sq_; }

 private:
  TrainingConfig training_;
  at::Tensor applied_steps_;
  std::vector<at::Tensor> exp_avg_;
  std::vector<at::Tensor> exp_avg_sq_;
};

}  // namespace mp::trainer
