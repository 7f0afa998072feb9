// Learning-rate schedules as Hugging Face's get_linear_schedule_with_warmup and get_cosine_schedule_with_warmup define
// them, with a floor. They follow applied updates: a step that loss scaling skipped does not count.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "worker/trainer/config/job.h"

namespace mp::trainer {

// Learning rate of the update that follows `applied` applied ones (0 for the first).
//   warm-up    applied < warmup_steps: peak * applied / warmup_steps
//   LINEAR     peak * (floor + (1 - floor) * (max_steps - applied) / (max_steps - warmup_steps))
//   COSINE     peak * (floor + (1 - floor) * (1 + cos(pi * progress)) / 2), progress = (applied - warmup) / (max -
//   warmup) CONSTANT   peak
// with floor = min_lr_ratio.
double LearningRate(const TrainingConfig& training, int64_t applied);
// The same for a counter on a device, int64 []: fp64 [] there, nothing is read back.
at::Tensor LearningRate(const TrainingConfig& training, const at::Tensor& applied);

}  // namespace mp::trainer
