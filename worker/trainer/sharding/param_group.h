// The parameters of one stage on one rank: the fp32 shard that is kept and the flat tensor that comes and goes.
//
//   SHARDED --StartGather--> GATHERING --Gather--> GATHERED --Free--> SHARDED
//
// The flat tensor is one object for the life of the group; its storage is freed and allocated anew, so that tensors
// which autograd saved stay valid aliases of the parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "worker/trainer/model/model.h"
#include "worker/trainer/sharding/collectives.h"
#include "worker/trainer/sharding/flat_layout.h"
#include "worker/trainer/sharding/sharded_model.h"

namespace mp::trainer {

class ParamGroup {
 public:
  // `on_last_gradient` is called in backward when every parameter has its gradient.
  ParamGroup(const std::vector<ParameterSpec>& specs, const PrecisionConfig& precision, Collectives* collectives,
             int64_t seed, std::function<void()> on_last_gradient);
  ~ParamGroup();
  ParamGroup(const ParamGroup&) = delete;
  ParamGroup& operator=(const ParamGroup&) = delete;

  void StartGather();
  void Gather();  // starts it where that has not happened, and waits
  void Free();
  const ParameterList& parameters() const { return parameters_; }

  // Sends the gradients that backward left; FinishReduce adds them to view().gradient.
  void StartReduce();
  void FinishReduce();
  // True between the first gradient of a backward pass and StartReduce.
  bool incomplete() const { return missing_ != parameters_.size(); }

  ShardView& view() { return view_; }
  const FlatLayout& layout() const { return layout_; }

 private:
  class GradientHook;
  void Initialise(const std::vector<ParameterSpec>& specs, int64_t seed);
  void TakeGradient(size_t parameter);

  const FlatLayout layout_;
  const at::ScalarType param_dtype_;
  const at::ScalarType reduce_dtype_;
  Collectives* const collectives_;
  const std::function<void()> on_last_gradient_;

  ShardView view_;
  at::Tensor flat_;           // param_dtype [padded]
  ParameterList parameters_;  // views of flat_
  at::Tensor gather_input_;   // param_dtype [shard], while gathering
  std::unique_ptr<Collectives::Pending> gathering_;
  bool gathered_ = false;

  at::Tensor flat_gradient_;  // reduce_dtype [padded], from the first gradient to the end of the reduction
  size_t missing_;            // gradients to come in this backward pass
  at::Tensor reduced_;        // fp32 [shard], while reducing
  std::unique_ptr<Collectives::Pending> reducing_;
};

}  // namespace mp::trainer
