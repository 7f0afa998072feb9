#include "worker/trainer/optim/schedule.h"

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

}  // namespace mp::trainer
