#include "worker/trainer/sharding/param_group.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "worker/trainer/precision/convert.h"
#include "worker/trainer/sharding/initialise.h"

namespace mp::trainer {
namespace {

void AllocateStorage(const at::Tensor& tensor) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  const size_t bytes = static_cast<size_t>(tensor.numel()) * tensor.element_size();
  storage->set_data_ptr_noswap(storage->allocator()->allocate(bytes));
  storage->set_nbytes(bytes);
}

void FreeStorage(const at::Tensor& tensor) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(storage->allocator()->allocate(0));
  storage->set_nbytes(0);
}

}  // namespace

class ParamGroup::GradientHook : public torch::autograd::PostAccumulateGradHook {
 public:
  GradientHook(ParamGroup* group, size_t parameter) : group_(group), parameter_(parameter) {}
  void operator()(const torch::autograd::Variable& /*tensor*/) override { group_->TakeGradient(parameter_); }

 private:
  ParamGroup* group_;
  size_t parameter_;
};

ParamGroup::ParamGroup(const std::vector<ParameterSpec>& specs, const Options& options, const ShardingMesh& mesh,
                       int64_t seed, std::function<void()> on_last_gradient)
    : layout_(specs, mesh.shard()->world_size(), mesh.replicas()->world_size()),
      options_(options),
      shard_group_(mesh.shard()),
      on_last_gradient_(std::move(on_last_gradient)),
      missing_(specs.size()),
      reduction_(mesh, options.reduce_dtype) {
  Initialise(specs, shard_group_->rank(), seed);
  is_master_ = shard_group_->world_size() == 1 && options_.param_dtype == at::kFloat &&
               options_.device == options_.master_device;
  flat_ = is_master_
              ? view_.master
              : at::empty({layout_.padded()}, at::TensorOptions().dtype(options_.param_dtype).device(options_.device));
  for (size_t i = 0; i < specs.size(); ++i) {
    at::Tensor parameter = flat_.slice(0, layout_.offset(i), layout_.offset(i) + layout_.numel(i)).view(specs[i].shape);
    parameter.set_requires_grad(true);
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<GradientHook>(this, i));
    parameters_.push_back(std::move(parameter));
  }
  if (!is_master_) FreeStorage(flat_);
}

ParamGroup::~ParamGroup() = default;

void ParamGroup::Initialise(const std::vector<ParameterSpec>& specs, int shard, int64_t seed) {
  view_.master = at::zeros({layout_.shard_size()}, at::TensorOptions().dtype(at::kFloat));
  for (const FlatLayout::Piece& piece : layout_.Pieces(shard)) {
    const ParameterSpec& spec = specs[piece.parameter];
    at::Tensor target = view_.master.slice(0, piece.shard_begin, piece.shard_begin + piece.count);
    switch (spec.init) {
      case ParameterSpec::Init::kZeros:
        break;
      case ParameterSpec::Init::kOnes:
        target.fill_(1.0);
        break;
      case ParameterSpec::Init::kNormal:
        FillNormal(seed, spec.name, spec.init_std, piece.parameter_begin, piece.count,
                   target.mutable_data_ptr<float>());
        break;
    }
    view_.ranges.push_back({piece.shard_begin, piece.shard_begin + piece.count, spec.weight_decay});
  }
  view_.master = view_.master.to(options_.master_device);
}

void ParamGroup::StartGather() {
  if (is_master_ || gathered_ || gathering_) return;
  const at::NoGradGuard no_grad;
  AllocateStorage(flat_);
  gather_input_ = FromFloatTensor(view_.master, 1.0F, options_.param_dtype).to(options_.device);
  // An alias with a version counter of its own: to autograd the parameters are what they were when it saved them.
  gathering_ = shard_group_->AllGather(flat_.variable_data(), gather_input_);
}

void ParamGroup::Gather() {
  StartGather();
  if (!gathering_) return;
  gathering_->Wait();
  gathering_.reset();
  gather_input_.reset();
  gathered_ = true;
}

void ParamGroup::Free() {
  if (gathering_) Gather();
  if (!gathered_) return;
  FreeStorage(flat_);
  gathered_ = false;
}

void ParamGroup::TakeGradient(size_t parameter) {
  const at::NoGradGuard no_grad;
  if (!flat_gradient_.defined()) {
    flat_gradient_ = at::zeros(
        {layout_.padded()},
        at::TensorOptions().dtype(options_.accumulate ? at::kFloat : options_.reduce_dtype).device(options_.device));
  }
  at::Tensor& gradient = parameters_[parameter].mutable_grad();
  const int64_t begin = layout_.offset(parameter);
  const at::Tensor target = flat_gradient_.slice(0, begin, begin + layout_.numel(parameter)).view(gradient.sizes());
  options_.accumulate ? target.add_(gradient) : target.copy_(gradient);
  gradient.reset();
  if (--missing_ == 0) on_last_gradient_();
}

bool ParamGroup::EndBackward() {
  const bool complete = missing_ == 0;
  missing_ = parameters_.size();
  return complete;
}

void ParamGroup::Abandon() {
  gathering_.reset();
  gather_input_.reset();
  if (!is_master_) FreeStorage(flat_);
  gathered_ = false;
  flat_gradient_.reset();
  for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
  missing_ = parameters_.size();
  reduction_.Abandon();
}

void ParamGroup::StartReduce() {
  const at::NoGradGuard no_grad;
  at::Tensor flat = std::exchange(flat_gradient_, at::Tensor());
  if (options_.accumulate) {
    flat = FromFloatTensor(flat, 1.0F / options_.divide_before, options_.reduce_dtype);
  } else if (options_.divide_before != 1.0F) {
    flat.div_(options_.divide_before);
  }
  reduction_.Start(std::move(flat));
  TakeReduced();
}

void ParamGroup::AdvanceReduce() {
  const at::NoGradGuard no_grad;
  reduction_.Advance();
  TakeReduced();
}

void ParamGroup::FinishReduce() {
  while (reduction_.in_flight()) AdvanceReduce();
}

void ParamGroup::TakeReduced() {
  if (reduction_.in_flight()) return;
  at::Tensor reduced = reduction_.Take();
  if (!reduced.defined()) return;
  if (options_.divide_after != 1.0F) reduced.div_(options_.divide_after);
  reduced = reduced.to(options_.master_device);
  if (view_.gradient.defined()) {
    view_.gradient.add_(reduced);
  } else {
    view_.gradient = std::move(reduced);
  }
}

}  // namespace mp::trainer
