#include "worker/trainer/optim/schedule.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace mp::trainer {

double LearningRate(const TrainingConfig& training, int64_t applied) {
  const auto warmup = static_cast<double>(training.warmup_steps);
  const auto done = static_cast<double>(applied);
  if (applied < training.warmup_steps) return training.learning_rate * done / warmup;
  const double span = std::max(1.0, static_cast<double>(training.max_steps) - warmup);
  const double progress = std::min(1.0, (done - warmup) / span);
  double share = 1.0;
  switch (training.lr_schedule) {
    case TrainingConfig::LrSchedule::kLinear:
      share = 1.0 - progress;
      break;
    case TrainingConfig::LrSchedule::kCosine:
      share = 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
      break;
    case TrainingConfig::LrSchedule::kConstant:
      return training.learning_rate;
  }
  return training.learning_rate * (training.min_lr_ratio + (1.0 - training.min_lr_ratio) * share);
}

at::Tensor LearningRate(const TrainingConfig& training, const at::Tensor& applied) {
  const auto warmup = static_cast<double>(training.warmup_steps);
  const at::Tensor done = applied.to(at::kDouble);
  const double span = std::max(1.0, static_cast<double>(training.max_steps) - warmup);
  const at::Tensor progress = ((done - warmup) / span).clamp_max(1.0);
  at::Tensor rate;
  switch (training.lr_schedule) {
    case TrainingConfig::LrSchedule::kLinear:
      rate = 1.0 - progress;
      break;
    case TrainingConfig::LrSchedule::kCosine:
      rate = 0.5 * (1.0 + (std::numbers::pi * progress).cos());
      break;
    case TrainingConfig::LrSchedule::kConstant:
      rate = at::full_like(progress, 1.0);
      break;
  }
  if (training.lr_schedule != TrainingConfig::LrSchedule::kConstant) {
    rate = training.min_lr_ratio + (1.0 - training.min_lr_ratio) * rate;
  }
  if (training.warmup_steps > 0) rate = at::where(applied.lt(training.warmup_steps), done / warmup, rate);
  return training.learning_rate * rate;
}

}  // namespace mp::trainer
