#include "worker/trainer/model/activation_checkpointing.h"

#include <ATen/Context.h>
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

// Of the generator that ops on `device` draw from.
at::Tensor RandomState(at::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void SetRandomState(at::Device device, const at::Tensor& state) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

// While it lives, random numbers and FP8 casts are those of the first run.
class Replay {
 public:
  Replay(at::Device device, const at::Tensor& random_state, fp8::Context* fp8)
      : device_(device), fp8_(fp8), present_(RandomState(device)) {
    SetRandomState(device_, random_state);
    if (fp8_ != nullptr) fp8_->set_recomputing(true);
  }
  ~Replay() {
    SetRandomState(device_, present_);
    if (fp8_ != nullptr) fp8_->set_recomputing(false);
  }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

 private:
  at::Device device_;
  fp8::Context* fp8_;
  at::Tensor present_;
};

// What backward needs, in autograd's keeping.
struct SecondRun : torch::CustomClassHolder {
  std::function<at::Tensor(const at::Tensor&)> run;
  at::Tensor random_state;
  fp8::Context* fp8 = nullptr;
  ActivationOffload* offload = nullptr;
  size_t ticket = 0;  // of x, with `offload`
};

class CheckpointedFunction : public torch::autograd::Function<CheckpointedFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const c10::intrusive_ptr<SecondRun>& second) {
    second->random_state = RandomState(x.device());
    if (second->offload != nullptr) {
      second->ticket = second->offload->Put(x);
    } else {
      ctx->save_for_backward({x});
    }
    ctx->saved_data["second"] = c10::IValue::make_capsule(second);
    return second->run(x);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto second = c10::static_intrusive_pointer_cast<SecondRun>(ctx->saved_data["second"].toCapsule());
    const at::Tensor kept =
        second->offload != nullptr ? second->offload->Take(second->ticket) : ctx->get_saved_variables()[0];
    const at::Tensor x = kept.detach().set_requires_grad(true);
    at::Tensor y;
    {
      const Replay replay(x.device(), second->random_state, second->fp8);
      const at::AutoGradMode grad_mode(true);
      y = second->run(x);
    }
    torch::autograd::backward({y}, {gradients[0]});
    return {x.grad(), at::Tensor()};
  }
};

}  // namespace

at::Tensor Checkpointed(std::function<at::Tensor(const at::Tensor&)> run, const at::Tensor& x, fp8::Context* fp8,
                        ActivationOffload* offload) {
  if (!at::GradMode::is_enabled()) return run(x);
  auto second = c10::make_intrusive<SecondRun>();
  second->run = std::move(run);
  second->fp8 = fp8;
  second->offload = offload;
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
