#include "worker/trainer/optim/adam.h"

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>

#include <cmath>

#include "worker/trainer/precision/vectorize.h"

namespace mp::trainer {
namespace {

struct Coefficients {
  float factor;
  float penalty;  // Adam: weight_decay
  float decay;    // AdamW: 1 - lr * weight_decay
  float beta1;
  float beta2;
  float rest1;  // 1 - b1, rounded once: 1 - 0.999F is off by 1e-5
  float rest2;
  float step_size;  // lr / (1 - b1^t)
  float root;       // 1 / sqrt(1 - b2^t)
  float epsilon;
};

MP_VECTORIZE void UpdateAll(const Coefficients& c, const float* __restrict gradient, float* __restrict p,
                            float* __restrict m, float* __restrict v, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float g = gradient[i] * c.factor + c.penalty * p[i];
    m[i] = c.beta1 * m[i] + c.rest1 * g;
    v[i] = c.beta2 * v[i] + c.rest2 * (g * g);
    const float denominator = __builtin_sqrtf(v[i]) * c.root + c.epsilon;
    p[i] = p[i] * c.decay - c.step_size * (m[i] / denominator);
  }
}

}  // namespace

void Adam::Update(const Range& range, float factor, double learning_rate, int64_t applied) {
  const bool decoupled = training_.optim == TrainingConfig::Optimizer::kAdamW;
  const auto t = static_cast<double>(applied + 1);
  Coefficients c = {};
  c.factor = factor;
  c.penalty = decoupled ? 0.0F : static_cast<float>(range.weight_decay);
  c.decay = decoupled ? static_cast<float>(1.0 - learning_rate * range.weight_decay) : 1.0F;
  c.beta1 = static_cast<float>(training_.adam_beta1);
  c.beta2 = static_cast<float>(training_.adam_beta2);
  c.rest1 = static_cast<float>(1.0 - training_.adam_beta1);
  c.rest2 = static_cast<float>(1.0 - training_.adam_beta2);
  c.step_size = static_cast<float>(learning_rate / (1.0 - std::pow(training_.adam_beta1, t)));
  c.root = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(training_.adam_beta2, t)));
  c.epsilon = static_cast<float>(training_.adam_epsilon);
  UpdateAll(c, range.gradient, range.parameter, range.state[0], range.state[1], range.count);
}

void Adam::UpdateFused(Ranges& ranges, const StepTensors& step) {
  const std::vector<at::Tensor> steps(ranges.parameters.size(), step.step);
  const auto update = [&](auto&& kernel) {
    kernel(ranges.parameters, ranges.gradients, ranges.state[0], ranges.state[1], at::TensorList(), steps,
           step.learning_rate, training_.adam_beta1, training_.adam_beta2, ranges.weight_decay, training_.adam_epsilon,
           /*amsgrad=*/false, /*maximize=*/false, step.scale, step.found_inf);
  };
  if (training_.optim == TrainingConfig::Optimizer::kAdamW) {
    update([](auto&&... arguments) { at::_fused_adamw_(arguments...); });
  } else {
    update([](auto&&... arguments) { at::_fused_adam_(arguments...); });
  }
}

}  // namespace mp::trainer
