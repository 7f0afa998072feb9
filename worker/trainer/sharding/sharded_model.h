// A model's parameters sharded over the ranks of a mesh, with the strategies of PyTorch's FSDP.
//
// The parameters of a stage are flattened in order, padded and cut into equal shards (flat_layout.h). A rank keeps its
// fp32 master shard, its fp32 gradient shard and (in the optimizer) its moments. Before a stage runs, forward or
// backward, its flat parameter is all-gathered in param_dtype, while the stage before it still computes; how long it
// stays is the strategy's business:
//
//                    freed after forward   freed after backward   gradients
//   FULL_SHARD       yes                   yes                    reduce-scatter over all ranks
//   HYBRID_SHARD     yes                   yes                    reduce-scatter in the block, then summed over copies
//   SHARD_GRAD_OP    no                    yes                    reduce-scatter over all ranks
//   NO_SHARD         no                    when it changes        summed over copies
//
// The last stage is kept for the backward that follows, and so is a stage whose parameters a later one shares (tied
// embeddings), in forward and evaluation. When the last gradient of a stage is there, the reduction starts in
// reduce_dtype, while backward goes on (gradient_reduction.h); its result is added to the fp32 gradient shard.
//
// Gradients are sums over ranks: the caller divides the loss by the count of tokens of all ranks and micro-batches.
// Where fp16 is param_dtype or reduce_dtype, backward works with gradients of a rank's own mean, as FSDP's does, so
// that a loss scale means the same; they are divided before the reduction (fp16 reduce_dtype: near the root of the
// number of ranks) and after it.
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
#include "worker/trainer/sharding/mesh.h"

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
  struct Options {
    PrecisionConfig precision;
    ShardingConfig sharding;
    int64_t micro_batches = 1;  // of an optimizer step
    int64_t seed = 0;
    at::Device device = at::kCPU;
  };

  // Initialises the master shards from the seed: the same weights whatever the world size (initialise.h); no rank holds
  // more than its shards. Neither `model` nor `mesh` is owned; both must outlive this.
  ShardedModel(Model* model, const Options& options, const ShardingMesh* mesh);
  ~ShardedModel();
  ShardedModel(const ShardedModel&) = delete;
  ShardedModel& operator=(const ShardedModel&) = delete;

  // Sum of token losses of this rank's micro-batch, fp32 []. With grad mode on it can be passed to Backward once.
  at::Tensor Forward(const Batch& batch);
  // Backward of loss * factor (fp32 []). With `last_micro_batch`, or always with sync_each_batch, every gradient shard
  // has the sum over ranks and micro-batches when it returns.
  void Backward(const at::Tensor& loss, const at::Tensor& factor, bool last_micro_batch);
  // Forgets what a forward or backward that threw left half done. Collectives in flight must be void (a recording's).
  void Abandon();
  // After master shards were written to: parameters that are still gathered are stale.
  void ParametersChanged();

  std::vector<ShardView>& shards();
  void ClearGradients();
  int64_t parameter_count() const;  // of the whole model
  // False on ranks that hold copies of what an earlier rank holds: a checkpoint has it once.
  bool holds_first_copy() const;

  // The cut of per-stage fp32 tensors [shard_size], in the order of shards(), into slices by parameter name, sharing
  // memory.
  std::vector<TensorSlice> SlicesOf(const std::string& prefix, const std::vector<at::Tensor>& per_shard) const;
  std::vector<TensorSlice> MasterSlices(const std::string& prefix) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mp::trainer
