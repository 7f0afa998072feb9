// The parameters of one stage on one rank: the fp32 shard that is kept and the flat tensor that comes and goes.
//
//   SHARDED --StartGather--> GATHERING --Gather--> GATHERED --Free--> SHARDED
//
// The flat tensor is one object for the life of the group; its storage is freed and allocated anew, so that tensors
// which autograd saved stay valid aliases of the parameters. Where one rank holds all of an fp32 parameter, the flat
// tensor is the master itself and always gathered.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "worker/trainer/model/model.h"
#include "worker/trainer/sharding/flat_layout.h"
#include "worker/trainer/sharding/gradient_reduction.h"
#include "worker/trainer/sharding/mesh.h"
#include "worker/trainer/sharding/sharded_model.h"

namespace mp::trainer {

class ParamGroup {
 public:
  struct Options {
    at::ScalarType param_dtype = at::kFloat;
    at::ScalarType reduce_dtype = at::kFloat;
    // Where the model computes, and where masters, gradient shards (and with them the optimizer) are kept.
    at::Device device = at::kCPU;
    at::Device master_device = at::kCPU;
    // Gradients of several backward passes are summed in fp32 before one reduction (no_sync).
    bool accumulate = false;
    // Divides gradients before the reduction, in reduce_dtype, and after it, in fp32.
    float divide_before = 1.0F;
    float divide_after = 1.0F;
  };

  // `on_last_gradient` is called in backward when every parameter has its gradient. `mesh` must outlive the group.
  ParamGroup(const std::vector<ParameterSpec>& specs, const Options& options, const ShardingMesh& mesh, int64_t seed,
             std::function<void()> on_last_gradient);
  ~ParamGroup();
  ParamGroup(const ParamGroup&) = delete;
  ParamGroup& operator=(const ParamGroup&) = delete;

  void StartGather();
  void Gather();  // starts it where that has not happened, and waits
  void Free();
  const ParameterList& parameters() const { return parameters_; }

  // Sends the gradients that backward left. AdvanceReduce takes the reduction one phase on, FinishReduce to its end;
  // then it is added to view().gradient.
  void StartReduce();
  void AdvanceReduce();
  void FinishReduce();
  // Ends a backward pass. Whether any gradient failed to come.
  bool EndBackward();

  void Abandon();  // see ShardedModel

  ShardView& view() { return view_; }
  const FlatLayout& layout() const { return layout_; }

 private:
  class GradientHook;
  void Initialise(const std::vector<ParameterSpec>& specs, int shard, int64_t seed);
  void TakeGradient(size_t parameter);
  void TakeReduced();

  const FlatLayout layout_;
  const Options options_;
  Collectives* const shard_group_;
  const std::function<void()> on_last_gradient_;

  ShardView view_;
  bool is_master_ = false;    // flat_ is view_.master
  at::Tensor flat_;           // param_dtype [padded]
  ParameterList parameters_;  // views of flat_
  at::Tensor gather_input_;   // param_dtype [shard], while gathering
  std::unique_ptr<Collectives::Pending> gathering_;
  bool gathered_ = false;

  // [padded], from the first gradient to the start of the reduction: reduce_dtype, or fp32 with `accumulate`.
  at::Tensor flat_gradient_;
  size_t missing_;  // gradients to come in this backward pass
  GradientReduction reduction_;
};

}  // namespace mp::trainer
