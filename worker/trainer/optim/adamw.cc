#include "worker/trainer/optim/adamw.h"

#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>

#include "worker/trainer/optim/schedule.h"
#include "worker/trainer/precision/vectorize.h"

namespace mp::trainer {
namespace {

struct Coefficients {
  float factor;
  float decay;  // 1 - lr * weight_decay
  float beta1;
  float beta2;
  float rest1;  // 1 - b1, rounded once: 1 - 0.999F is off by 1e-5
  float rest2;
  float step_size;  // lr / (1 - b1^t)
  float root;       // 1 / sqrt(1 - b2^t)
  float epsilon;
};

MP_VECTORIZE void Update(const Coefficients& c, const float* __restrict gradient, float* __restrict p,
                         float* __restrict m, float* __restrict v, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float g = gradient[i] * c.factor;
    m[i] = c.beta1 * m[i] + c.rest1 * g;
    v[i] = c.beta2 * v[i] + c.rest2 * (g * g);
    const float denominator = __builtin_sqrtf(v[i]) * c.root + c.epsilon;
    p[i] = p[i] * c.decay - c.step_size * (m[i] / denominator);
  }
}

}  // namespace

AdamW::AdamW(const TrainingConfig& training, const std::vector<ShardView>& shards)
    : training_(training), applied_steps_(at::zeros({}, at::TensorOptions().dtype(at::kLong))) {
  for (const ShardView& shard : shards) {
    exp_avg_.push_back(at::zeros_like(shard.master));
    exp_avg_sq_.push_back(at::zeros_like(shard.master));
  }
}

void AdamW::Step(std::vector<ShardView>& shards, const GradientSummary& gradients) {
  // On the CPU reading a tensor waits for nothing.
  if (*gradients.found_inf.const_data_ptr<float>() > 0) return;
  const int64_t applied = *applied_steps_.const_data_ptr<int64_t>();
  const double lr = LearningRate(training_, applied);
  const auto t = static_cast<double>(applied + 1);
  Coefficients c = {};
  c.factor = *gradients.factor.const_data_ptr<float>();
  c.beta1 = static_cast<float>(training_.adam_beta1);
  c.beta2 = static_cast<float>(training_.adam_beta2);
  c.rest1 = static_cast<float>(1.0 - training_.adam_beta1);
  c.rest2 = static_cast<float>(1.0 - training_.adam_beta2);
  c.step_size = static_cast<float>(lr / (1.0 - std::pow(training_.adam_beta1, t)));
  c.root = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(training_.adam_beta2, t)));
  c.epsilon = static_cast<float>(training_.adam_epsilon);
  for (size_t i = 0; i < shards.size(); ++i) {
    const auto* gradient = shards[i].gradient.const_data_ptr<float>();
    auto* p = shards[i].master.mutable_data_ptr<float>();
    auto* m = exp_avg_[i].mutable_data_ptr<float>();
    auto* v = exp_avg_sq_[i].mutable_data_ptr<float>();
    for (const ShardView::Range& range : shards[i].ranges) {
      c.decay = range.weight_decay ? static_cast<float>(1.0 - lr * training_.weight_decay) : 1.0F;
      const int64_t b = range.begin;
      Update(c, gradient + b, p + b, m + b, v + b, range.end - b);
    }
  }
  applied_steps_.add_(1);
}

}  // namespace mp::trainer
