#include "worker/trainer/sharding/sharded_model.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "worker/trainer/sharding/param_group.h"

namespace mp::trainer {

struct ShardedModel::Impl {
  Impl(Model* model_in, const PrecisionConfig& precision, Collectives* collectives, int64_t seed) : model(model_in) {
    for (size_t i = 0; i < model->stages().size(); ++i) {
      groups.push_back(std::make_unique<ParamGroup>(model->stages()[i]->parameters(), precision, collectives, seed,
                                                    [this, i] { AfterLastGradient(i); }));
      views.push_back(groups.back()->view());
      for (const ParameterSpec& spec : model->stages()[i]->parameters()) parameter_count += spec.numel();
    }
  }

  // In backward, before stage i runs.
  void BeforeBackward(size_t i) {
    groups[i]->Gather();
    if (i > 0) groups[i - 1]->StartGather();
  }

  // In backward, after stage i has run. One reduction is in flight at a time, beside the gathers.
  void AfterLastGradient(size_t i) {
    groups[i]->Free();
    if (i + 1 < groups.size()) groups[i + 1]->FinishReduce();
    groups[i]->StartReduce();
  }

  Model* model;
  std::vector<std::unique_ptr<ParamGroup>> groups;
  std::vector<ShardView> views;  // of groups, in order; gradients are handed over after Backward
  int64_t parameter_count = 0;
  int rank = 0;
};

ShardedModel::ShardedModel(Model* model, const PrecisionConfig& precision, Collectives* collectives, int64_t seed)
    : impl_(std::make_unique<Impl>(model, precision, collectives, seed)) {
  impl_->rank = collectives->rank();
}

ShardedModel::~ShardedModel() = default;

at::Tensor ShardedModel::Forward(const Batch& batch) {
  const auto& stages = impl_->model->stages();
  const bool training = at::GradMode::is_enabled();
  at::Tensor x;
  for (size_t i = 0; i < stages.size(); ++i) {
    impl_->groups[i]->Gather();
    if (i + 1 < stages.size()) impl_->groups[i + 1]->StartGather();
    x = stages[i]->Forward(x, impl_->groups[i]->parameters(), batch);
    // The last stage stays: backward starts with it.
    if (i + 1 < stages.size() || !training) impl_->groups[i]->Free();
    if (training && i + 1 < stages.size()) {
      x.register_hook([impl = impl_.get(), i](const at::Tensor& gradient) {
        impl->BeforeBackward(i);
        return gradient;
      });
    }
  }
  return x;
}

void ShardedModel::Backward(const at::Tensor& loss, const at::Tensor& factor) {
  if (impl_->groups.size() > 1) impl_->groups[impl_->groups.size() - 2]->StartGather();
  torch::autograd::backward({loss}, {factor});
  for (size_t i = 0; i < impl_->groups.size(); ++i) {
    ParamGroup& group = *impl_->groups[i];
    TORCH_CHECK(!group.incomplete(), impl_->model->stages()[i]->name(), ": a parameter got no gradient");
    group.FinishReduce();
    impl_->views[i].gradient = group.view().gradient;
  }
}

std::vector<ShardView>& ShardedModel::shards() { return impl_->views; }

void ShardedModel::ClearGradients() {
  for (size_t i = 0; i < impl_->groups.size(); ++i) {
    impl_->groups[i]->view().gradient.reset();
    impl_->views[i].gradient.reset();
  }
}

int64_t ShardedModel::parameter_count() const { return impl_->parameter_count; }

std::vector<TensorSlice> ShardedModel::SlicesOf(const std::string& prefix,
                                                const std::vector<at::Tensor>& per_shard) const {
  std::vector<TensorSlice> slices;
  for (size_t i = 0; i < impl_->groups.size(); ++i) {
    const auto& specs = impl_->model->stages()[i]->parameters();
    for (const FlatLayout::Piece& piece : impl_->groups[i]->layout().Pieces(impl_->rank)) {
      const ParameterSpec& spec = specs[piece.parameter];
      slices.push_back({prefix + spec.name, spec.shape, piece.parameter_begin,
                        per_shard[i].slice(0, piece.shard_begin, piece.shard_begin + piece.count)});
    }
  }
  return slices;
}

std::vector<TensorSlice> ShardedModel::MasterSlices(const std::string& prefix) const {
  std::vector<at::Tensor> masters;
  for (const ShardView& view : impl_->views) masters.push_back(view.master);
  return SlicesOf(prefix, masters);
}

}  // namespace mp::trainer
