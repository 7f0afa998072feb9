#include "worker/trainer/sharding/sharded_model.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>

#include "worker/trainer/sharding/param_group.h"

namespace mp::trainer {
namespace {

using Strategy = ShardingConfig::Strategy;
using BackwardPrefetch = ShardingConfig::BackwardPrefetch;

// PyTorch FSDP's division for fp16 reductions: powers of two up to about the root of the number of ranks, so that
// neither the addends underflow nor the sum overflows.
int DivisionBefore(int ranks) {
  int factor = 1;
  while (ranks % factor == 0 && ranks / factor > factor) factor *= 2;
  return factor;
}

}  // namespace

struct ShardedModel::Impl {
  Impl(Model* model_in, const Options& options_in, const ShardingMesh* mesh_in)
      : model(model_in), options(options_in), sharding(options.sharding), mesh(mesh_in) {
    const PrecisionConfig& precision = options.precision;
    ParamGroup::Options group;
    group.device = options.device;
    group.master_device = sharding.cpu_offload ? at::Device(at::kCPU) : options.device;
    group.param_dtype = precision.param_dtype;
    group.reduce_dtype = precision.reduce_dtype;
    group.accumulate = !sharding.sync_each_batch && options.micro_batches > 1;
    if (precision.param_dtype == at::kHalf || precision.reduce_dtype == at::kHalf) {
      const int ranks = mesh->world()->world_size();
      local_mean = static_cast<double>(ranks);
      group.divide_before = precision.reduce_dtype == at::kHalf ? static_cast<float>(DivisionBefore(ranks)) : 1.0F;
      group.divide_after = static_cast<float>(ranks) / group.divide_before;
    }
    const auto& stages = model->stages();
    std::map<std::string, std::pair<size_t, size_t>> owner;  // of each parameter: stage, place
    keep.resize(stages.size());
    tied.resize(stages.size());
    for (size_t i = 0; i < stages.size(); ++i) {
      const auto& specs = stages[i]->parameters();
      groups.push_back(
          std::make_unique<ParamGroup>(specs, group, *mesh, options.seed, [this, i] { AfterLastGradient(i); }));
      views.push_back(groups.back()->view());
      for (size_t j = 0; j < specs.size(); ++j) {
        owner[specs[j].name] = {i, j};
        parameter_count += specs[j].numel();
      }
      for (const std::string& name : stages[i]->tied_parameters()) {
        TORCH_INTERNAL_ASSERT(owner.contains(name) && owner[name].first < i, stages[i]->name(), " shares ", name);
        tied[i].push_back(owner[name]);
        keep[owner[name].first] = true;
      }
    }
  }

  ParameterList ParametersOf(size_t i) const {
    ParameterList list = groups[i]->parameters();
    for (const auto& [stage, place] : tied[i]) list.push_back(groups[stage]->parameters()[place]);
    return list;
  }

  void PrefetchForward(size_t i) {
    if (!sharding.forward_prefetch) return;
    const size_t end = sharding.limit_all_gathers ? std::min(i + 2, groups.size()) : groups.size();
    for (size_t next = i + 1; next < end; ++next) groups[next]->StartGather();
  }

  void PrefetchBackward(size_t i) {
    const size_t end = sharding.limit_all_gathers && i > 0 ? i - 1 : 0;
    for (size_t next = i; next-- > end;) groups[next]->StartGather();
  }

  // In backward, before stage i runs.
  void BeforeBackward(size_t i) {
    groups[i]->Gather();
    if (sharding.backward_prefetch == BackwardPrefetch::kPre) PrefetchBackward(i);
  }

  // In backward, after stage i has run. Reductions of later stages move on by a phase: each has had this stage's time.
  void AfterLastGradient(size_t i) {
    if (sharding.strategy != Strategy::kNoShard) groups[i]->Free();
    if (sharding.backward_prefetch == BackwardPrefetch::kPost) PrefetchBackward(i);
    if (!reduces) return;
    for (size_t later = groups.size(); --later > i;) groups[later]->AdvanceReduce();
    groups[i]->StartReduce();
  }

  bool FreedAfterForward(size_t i, bool training) const {
    if (keep[i] || sharding.strategy == Strategy::kNoShard) return false;
    return !training || (sharding.reshard_after_forward && i + 1 < groups.size());
  }

  Model* model;
  const Options options;
  const ShardingConfig& sharding;
  const ShardingMesh* mesh;
  double local_mean = 1.0;  // what the loss is multiplied by in backward
  std::vector<std::unique_ptr<ParamGroup>> groups;
  std::vector<std::vector<std::pair<size_t, size_t>>> tied;  // of each stage: the parameters it shares
  std::vector<bool> keep;                                    // stages whose parameters a later one shares
  std::vector<ShardView> views;  // of groups, in order; gradients are handed over after Backward
  int64_t parameter_count = 0;
  bool reduces = true;  // in the present backward pass
};

ShardedModel::ShardedModel(Model* model, const Options& options, const ShardingMesh* mesh)
    : impl_(std::make_unique<Impl>(model, options, mesh)) {}

ShardedModel::~ShardedModel() = default;

at::Tensor ShardedModel::Forward(const Batch& batch) {
  const auto& stages = impl_->model->stages();
  const bool training = at::GradMode::is_enabled();
  at::Tensor x;
  for (size_t i = 0; i < stages.size(); ++i) {
    impl_->groups[i]->Gather();
    impl_->PrefetchForward(i);
    x = stages[i]->Forward(x, impl_->ParametersOf(i), batch);
    if (impl_->FreedAfterForward(i, training)) impl_->groups[i]->Free();
    if (training && i + 1 < stages.size()) {
      x.register_hook([impl = impl_.get(), i](const at::Tensor& gradient) {
        impl->BeforeBackward(i);
        return gradient;
      });
    }
  }
  if (!training && impl_->sharding.strategy != Strategy::kNoShard) ParametersChanged();  // frees what forward kept
  return x;
}

void ShardedModel::Backward(const at::Tensor& loss, const at::Tensor& factor, bool last_micro_batch) {
  impl_->reduces = impl_->sharding.sync_each_batch || impl_->options.micro_batches == 1 || last_micro_batch;
  impl_->BeforeBackward(impl_->groups.size() - 1);
  torch::autograd::backward({loss}, {impl_->local_mean == 1.0 ? factor : factor * impl_->local_mean});
  for (size_t i = 0; i < impl_->groups.size(); ++i) {
    ParamGroup& group = *impl_->groups[i];
    TORCH_CHECK(group.EndBackward(), impl_->model->stages()[i]->name(), ": a parameter got no gradient");
  }
  // Oldest first: every rank waits, and starts phases, in one order.
  for (size_t i = impl_->groups.size(); i-- > 0;) {
    impl_->groups[i]->FinishReduce();
    impl_->views[i].gradient = impl_->groups[i]->view().gradient;
  }
}

void ShardedModel::Abandon() {
  for (const auto& group : impl_->groups) group->Abandon();
  ClearGradients();
}

void ShardedModel::ParametersChanged() {
  for (const auto& group : impl_->groups) group->Free();
}

std::vector<ShardView>& ShardedModel::shards() { return impl_->views; }

void ShardedModel::ClearGradients() {
  for (size_t i = 0; i < impl_->groups.size(); ++i) {
    impl_->groups[i]->view().gradient.reset();
    impl_->views[i].gradient.reset();
  }
}

int64_t ShardedModel::parameter_count() const { return impl_->parameter_count; }

bool ShardedModel::holds_first_copy() const { return impl_->mesh->replicas()->rank() == 0; }

std::vector<TensorSlice> ShardedModel::SlicesOf(const std::string& prefix,
                                                const std::vector<at::Tensor>& per_shard) const {
  std::vector<TensorSlice> slices;
  for (size_t i = 0; i < impl_->groups.size(); ++i) {
    const auto& specs = impl_->model->stages()[i]->parameters();
    for (const FlatLayout::Piece& piece : impl_->groups[i]->layout().Pieces(impl_->mesh->shard()->rank())) {
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
