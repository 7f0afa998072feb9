#include "worker/trainer/loop/step_metrics.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <array>

namespace mp::trainer {
namespace {

enum Value : size_t {
  kLossSum,
  kTokens,
  kNorm,
  kLearningRate,
  kScale,
  kConsecutiveSkips,
  kNonFiniteStep,
  kSkippedSteps,
  kTotalTokens,
  kValues
};

at::Tensor Zero(at::Device device) { return at::zeros({}, at::TensorOptions().dtype(at::kDouble).device(device)); }

}  // namespace

StepMetrics::StepMetrics(Collectives* world, at::Device device)
    : world_(world), skipped_steps_(Zero(device)), tokens_(Zero(device)), non_finite_step_(Zero(device)) {}

void StepMetrics::Count(int64_t step, const StepResult& result) {
  const at::Tensor found = result.gradients.found_inf.to(skipped_steps_.device(), at::kDouble);
  skipped_steps_.add_(found);
  tokens_.add_(result.tokens);
  const at::Tensor first = non_finite_step_.eq(0).to(at::kDouble) * found;
  non_finite_step_.add_(first, static_cast<double>(step));
}

void StepMetrics::Record(int64_t step, const StepResult& result) {
  at::Tensor loss_sum = result.loss_sum.clone();
  world_->AllReduce(loss_sum, Collectives::Op::kSum);
  std::array<at::Tensor, kValues> values;
  values[kLossSum] = loss_sum;
  values[kTokens] = result.tokens;
  values[kNorm] = result.gradients.norm;
  values[kLearningRate] = result.learning_rate;
  values[kScale] = result.scale.to(at::kDouble);
  values[kConsecutiveSkips] = result.consecutive_skips.to(at::kDouble);
  values[kNonFiniteStep] = non_finite_step_;
  values[kSkippedSteps] = skipped_steps_;
  values[kTotalTokens] = tokens_;
  for (at::Tensor& value : values) value = value.to(loss_sum.device());
  recorded_ = at::stack(values);
  recorded_step_ = step;
  non_finite_step_.zero_();
}

StepMetrics::Frame StepMetrics::TakeFrame() {
  const at::Tensor read = recorded_.cpu();
  recorded_.reset();
  const auto* values = read.const_data_ptr<double>();
  Frame frame;
  frame.step = recorded_step_;
  frame.loss = values[kLossSum] / std::max(1.0, values[kTokens]);
  frame.grad_norm = values[kNorm];
  frame.learning_rate = values[kLearningRate];
  frame.loss_scale = values[kScale];
  frame.consecutive_skips = static_cast<int64_t>(values[kConsecutiveSkips]);
  frame.non_finite_step = static_cast<int64_t>(values[kNonFiniteStep]);
  frame.totals = {static_cast<int64_t>(values[kSkippedSteps]), static_cast<int64_t>(values[kTotalTokens])};
  return frame;
}

StepMetrics::Totals StepMetrics::totals() const {
  return {static_cast<int64_t>(skipped_steps_.item<double>()), static_cast<int64_t>(tokens_.item<double>())};
}

void StepMetrics::set_totals(const Totals& totals) {
  skipped_steps_.fill_(static_cast<double>(totals.skipped_steps));
  tokens_.fill_(static_cast<double>(totals.tokens));
}

}  // namespace mp::trainer
