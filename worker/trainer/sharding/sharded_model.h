// Full sharding of a model's parameters over the ranks of a process group.
//
// The parameters of a stage are flattened in order, padded to a multiple of the world size and cut into equal shards. A rank
// keeps its fp32 master shard, its fp32 gradient shard and (in the optimizer) its moments. Before a stage runs, forward or
// backward, its flat parameter is all-gathered in param_dtype; after it, freed. When the last gradient of a stage is
// accumulated, the flat gradient is reduce-scattered in reduce_dtype and added to the fp32 gradient shard.
//
// Thread-safety: one thread calls; backward runs on autograd's threads within Backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "worker/trainer/checkpoint/checkpoint.h"
#include "worker/trainer/config/job.h"
#include "worker/trainer/model/model.h"
#include "worker/trainer/sharding/collectives.h"

namespace mp::trainer {

// One stage's shard on this rank, all fp32 [shard_size].
struct ShardView {
  at::Tensor master;
  at::Tensor gradient;       // sum over ranks and micro-batches; undefined before the first Backward of a step
  at::Tensor decay_mask;     // 1 where weight decay applies, 0 elsewhere (padding: 0)
};

class ShardedModel {
 public:
  // Initialises the master shards from `seed`: the same weights whatever the world size, no rank ever holding more than its
  // shard plus one parameter. Neither `model` nor `collectives` is owned.
  ShardedModel(Model* model, const PrecisionConfig& precision, Collectives* collectives, int64_t seed);
  ~ShardedModel();
  ShardedModel(const ShardedModel&) = delete;
  ShardedModel& operator=(const ShardedModel&) = delete;

  // Sum of token losses of this rank's micro-batch, fp32 []. With grad mode on it can be passed to Backward once.
  at::Tensor Forward(const Batch& batch);
  // Backward of loss * factor; `synchronise` false accumulates without communication (not the last micro-batch).
  void Backward(const at::Tensor& loss, const at::Tensor& factor, bool synchronise);

  std::vector<ShardView>& shards();
  void ZeroGradients();
  int64_t parameter_count() const;  // global

  // This rank's master shards as slices by parameter name, sharing memory.
  std::vector<TensorSlice> MasterSlices(const std::string& prefix) const;
  // The same cut of any per-shard fp32 tensors (an optimizer's moments), in the order of shards().
  std::vector<TensorSlice> SlicesOf(const std::string& prefix, const std::vector<at::Tensor>& per_shard) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mp::trainer
