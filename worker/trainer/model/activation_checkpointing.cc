#include "worker/trainer/model/activation_checkpointing.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <memory>
#include <mutex>
#include <utility>

namespace mp::trainer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor RandomState() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void SetRandomState(const at::Tensor& state) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

// While it lives, random numbers and FP8 casts are those of the first run.
class Replay {
 public:
  Replay(const at::Tensor& random_state, fp8::Context* fp8) : fp8_(fp8), present_(RandomState()) {
    SetRandomState(random_state);
    if (fp8_ != nullptr) fp8_->set_recomputing(true);
  }
  ~Replay() {
    SetRandomState(present_);
    if (fp8_ != nullptr) fp8_->set_recomputing(false);
  }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

 private:
  fp8::Context* fp8_;
  at::Tensor present_;
};

// What backward needs, in autograd's keeping.
struct SecondRun : torch::CustomClassHolder {
  std::function<at::Tensor(const at::Tensor&)> run;
  at::Tensor random_state;
  fp8::Context* fp8 = nullptr;
};

class CheckpointedFunction : public torch::autograd::Function<CheckpointedFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const c10::intrusive_ptr<SecondRun>& second) {
    second->random_state = RandomState();
    ctx->save_for_backward({x});
    ctx->saved_data["second"] = c10::IValue::make_capsule(second);
    return second->run(x);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto second = c10::static_intrusive_pointer_cast<SecondRun>(ctx->saved_data["second"].toCapsule());
    const at::Tensor x = ctx->get_saved_variables()[0].detach().set_requires_grad(true);
    at::Tensor y;
    {
      const Replay replay(second->random_state, second->fp8);
      const at::AutoGradMode grad_mode(true);
      y = second->run(x);
    }
    torch::autograd::backward({y}, {gradients[0]});
    return {x.grad(), at::Tensor()};
  }
};

}  // namespace

at::Tensor Checkpointed(std::function<at::Tensor(const at::Tensor&)> run, const at::Tensor& x, fp8::Context* fp8) {
  if (!at::GradMode::is_enabled()) return run(x);
  auto second = c10::make_intrusive<SecondRun>();
  second->run = std::move(run);
  second->fp8 = fp8;
  return CheckpointedFunction::apply(x, second);
}

CheckpointedParts PartsOf(const ActivationCheckpointingConfig& config, int64_t index) {
  using Mode = ActivationCheckpointingConfig::Mode;
  CheckpointedParts parts;
  if (index % config.every_n_layers != 0) return parts;
  parts.layer = config.mode == Mode::kFull;
  parts.attention = config.mode == Mode::kAttention;
  parts.mlp = config.mode == Mode::kMlp;
  return parts;
}

}  // namespace mp::trainer
