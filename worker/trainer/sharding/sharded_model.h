// Full sharding of a model's parameters over the ranks of a process group.
//
// The parameters of a stage are flattened in order, padded to a multiple of the world size and cut into equal shards
// (flat_layout.h). A rank keeps its fp32 master shard, its fp32 gradient shard and (in the optimizer) its moments.
// Before a stage runs, forward or backward, its flat parameter is all-gathered in param_dtype, while the one before it
// still computes; after it, freed. When the last gradient of a stage is accumulated, the flat gradient is
// reduce-scattered in reduce_dtype, while backward goes on, and added to the fp32 gradient shard.
//
// Gradients are sums over ranks: the caller divides the loss by the count of tokens of all ranks and micro-batches.
// What travels is one rank's gradient and the sum is taken in fp32, so fp16 needs no division before and after the
// reduction.
//
// Thread-safety: one thread; autograd's CPU work runs on the calling thread.
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

// One stage's shard on this rank, fp32 [shard_size].
struct ShardView {
  // Elements [begin, end) belong to one parameter; what lies between ranges is padding, always 0.
  struct Range {
    int64_t begin = 0;
    int64_t end = 0;
    bool weight_decay = false;
  };
  at::Tensor master;
  at::Tensor gradient;  // undefined until a Backward of this step
  std::vector<Range> ranges;
};

class ShardedModel {
 public:
  // Initialises the master shards from `seed`: the same weights whatever the world size, no rank ever holding more than
  // its shards plus one parameter. Neither `model` nor `collectives` is owned; both must outlive this.
  ShardedModel(Model* model, const PrecisionConfig& precision, Collectives* collectives, int64_t seed);
  ~ShardedModel();
  ShardedModel(const ShardedModel&) = delete;
  ShardedModel& operator=(const ShardedModel&) = delete;

  // Sum of token losses of this rank's micro-batch, fp32 []. With grad mode on it can be passed to Backward once.
  at::Tensor Forward(const Batch& batch);
  // Backward of loss * factor (fp32 []); every gradient shard has the sum over ranks when it returns.
  void Backward(const at::Tensor& loss, const at::Tensor& factor);

  std::vector<ShardView>& shards();
  void ClearGradients();
  int64_t parameter_count() const;  // of the whole model

  // The cut of per-stage fp32 tensors [shard_size], in the order of shards(), into slices by parameter name, sharing
  // memory.
  std::vector<TensorSlice> SlicesOf(const std::string& prefix, const std::vector<at::Tensor>& per_shard) const;
  std::vector<TensorSlice> MasterSlices(const std::string& prefix) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mp::trainer
