// From summed, scaled gradient shards to what the optimizer needs: found_inf, the global norm, the factor that unscales
// and clips.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "worker/trainer/sharding/collectives.h"
#include "worker/trainer/sharding/sharded_model.h"

namespace mp::trainer {

// All fp32 [] but the norm; the same on all ranks.
struct GradientSummary {
  at::Tensor found_inf;  // 1 where any gradient of any rank is not finite, else 0
  at::Tensor norm;       // fp64 []: global L2 norm, unscaled, before clipping
  at::Tensor factor;     // multiplies the stored gradients: 1 / scale, times min(1, max_norm / (norm + 1e-6))
};

// Results live where the gradients do. `scale`: the loss scale that backward used. max_norm 0: no clipping. One
// all-reduce over the ranks that share one copy of the model (replicas hold equal gradients).
GradientSummary SummariseGradients(const std::vector<ShardView>& shards, const at::Tensor& scale, double max_norm,
                                   Collectives* shard_group);

}  // namespace mp::trainer
