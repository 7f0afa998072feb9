#include "worker/trainer/sharding/param_group.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CPUAllocator.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "worker/trainer/hash/xxh64.h"
#include "worker/trainer/precision/convert.h"

namespace mp::trainer {
namespace {

void AllocateStorage(const at::Tensor& tensor) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  const size_t bytes = static_cast<size_t>(tensor.numel()) * tensor.element_size();
  storage->set_data_ptr_noswap(c10::GetCPUAllocator()->allocate(bytes));
  storage->set_nbytes(bytes);
}

void FreeStorage(const at::Tensor& tensor) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::GetCPUAllocator()->allocate(0));
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

ParamGroup::ParamGroup(const std::vector<ParameterSpec>& specs, const PrecisionConfig& precision,
                       Collectives* collectives, int64_t seed, std::function<void()> on_last_gradient)
    : layout_(specs, collectives->world_size()),
      param_dtype_(precision.param_dtype),
      reduce_dtype_(precision.reduce_dtype),
      collectives_(collectives),
      on_last_gradient_(std::move(on_last_gradient)),
      missing_(specs.size()) {
  Initialise(specs, seed);
  flat_ = at::empty({layout_.padded()}, at::TensorOptions().dtype(param_dtype_));
  for (size_t i = 0; i < specs.size(); ++i) {
    at::Tensor parameter = flat_.slice(0, layout_.offset(i), layout_.offset(i) + layout_.numel(i)).view(specs[i].shape);
    parameter.set_requires_grad(true);
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<GradientHook>(this, i));
    parameters_.push_back(std::move(parameter));
  }
  FreeStorage(flat_);
}

ParamGroup::~ParamGroup() = default;

void ParamGroup::Initialise(const std::vector<ParameterSpec>& specs, int64_t seed) {
  view_.master = at::zeros({layout_.shard_size()}, at::TensorOptions().dtype(at::kFloat));
  for (const FlatLayout::Piece& piece : layout_.Pieces(collectives_->rank())) {
    const ParameterSpec& spec = specs[piece.parameter];
    at::Tensor target = view_.master.slice(0, piece.shard_begin, piece.shard_begin + piece.count);
    switch (spec.init) {
      case ParameterSpec::Init::kZeros:
        break;
      case ParameterSpec::Init::kOnes:
        target.fill_(1.0);
        break;
      case ParameterSpec::Init::kNormal: {
        // A generator for each parameter, so that neither other parameters nor the world size change its values.
        Xxh64 hash(static_cast<uint64_t>(seed));
        hash.Update(spec.name.data(), spec.name.size());
        auto generator = at::detail::createCPUGenerator(hash.Digest());
        at::Tensor whole = at::empty({spec.numel()}, at::TensorOptions().dtype(at::kFloat));
        whole.normal_(0.0, spec.init_std, generator);
        target.copy_(whole.slice(0, piece.parameter_begin, piece.parameter_begin + piece.count));
        break;
      }
    }
    view_.ranges.push_back({piece.shard_begin, piece.shard_begin + piece.count, spec.weight_decay});
  }
}

void ParamGroup::StartGather() {
  if (gathered_ || gathering_) return;
  const at::NoGradGuard no_grad;
  AllocateStorage(flat_);
  gather_input_ = FromFloatTensor(view_.master, 1.0F, param_dtype_);
  // An alias with a version counter of its own: to autograd the parameters are what they were when it saved them.
  gathering_ = collectives_->AllGather(flat_.variable_data(), gather_input_);
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
    flat_gradient_ = at::zeros({layout_.padded()}, at::TensorOptions().dtype(reduce_dtype_));
  }
  at::Tensor& gradient = parameters_[parameter].mutable_grad();
  flat_gradient_.slice(0, layout_.offset(parameter), layout_.offset(parameter) + layout_.numel(parameter))
      .view(gradient.sizes())
      .copy_(gradient);
  gradient.reset();
  if (--missing_ == 0) on_last_gradient_();
}

void ParamGroup::StartReduce() {
  const at::NoGradGuard no_grad;
  reduced_ = at::empty({layout_.shard_size()}, at::TensorOptions().dtype(at::kFloat));
  reducing_ = collectives_->ReduceScatter(reduced_, flat_gradient_);
  missing_ = parameters_.size();
}

void ParamGroup::FinishReduce() {
  if (!reducing_) return;
  const at::NoGradGuard no_grad;
  reducing_->Wait();
  reducing_.reset();
  flat_gradient_.reset();
  if (view_.gradient.defined()) {
    view_.gradient.add_(reduced_);
  } else {
    view_.gradient = std::move(reduced_);
  }
  reduced_.reset();
}

}  // namespace mp::trainer
