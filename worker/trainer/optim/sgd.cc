#include "worker/trainer/optim/sgd.h"

#include <ATen/ops/_fused_sgd.h>

#include "worker/trainer/precision/vectorize.h"

namespace mp::trainer {
namespace {

struct Coefficients {
  float factor;
  float penalty;  // weight_decay
  float momentum;
  float learning_rate;
};

MP_VECTORIZE void UpdatePlain(const Coefficients& c, const float* __restrict gradient, float* __restrict p,
                              int64_t count) {
  for (int64_t i = 0; i < count; ++i) p[i] -= c.learning_rate * (gradient[i] * c.factor + c.penalty * p[i]);
}

MP_VECTORIZE void UpdateWithMomentum(const Coefficients& c, const float* __restrict gradient, float* __restrict p,
                                     float* __restrict b, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    b[i] = c.momentum * b[i] + (gradient[i] * c.factor + c.penalty * p[i]);
    p[i] -= c.learning_rate * b[i];
  }
}

}  // namespace

void Sgd::Update(const Range& range, float factor, double learning_rate, int64_t /*applied*/) {
  const Coefficients c = {factor, static_cast<float>(range.weight_decay), static_cast<float>(training_.momentum),
                          static_cast<float>(learning_rate)};
  if (range.state.empty()) {
    UpdatePlain(c, range.gradient, range.parameter, range.count);
  } else {
    UpdateWithMomentum(c, range.gradient, range.parameter, range.state[0], range.count);
  }
}

void Sgd::UpdateFused(Ranges& ranges, const StepTensors& step) {
  // A buffer of zeros makes the first step what torch.optim makes it: the gradient itself.
  const std::vector<at::Tensor> buffers = ranges.state.empty() ? std::vector<at::Tensor>{} : ranges.state[0];
  at::_fused_sgd_(ranges.parameters, ranges.gradients, buffers, ranges.weight_decay, training_.momentum,
                  step.learning_rate, /*dampening=*/0.0, /*nesterov=*/false, /*maximize=*/false,
                  /*is_first_step=*/false, step.scale, step.found_inf);
}

}  // namespace mp::trainer
