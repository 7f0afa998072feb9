#include "worker/trainer/optim/sgd.h"

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

}  // namespace mp::trainer
