// Loss scaling with the semantics of torch.amp.GradScaler. Scale, growth tracker and found_inf stay tensors: no call
// here waits for a device.
//
//   DYNAMIC  found_inf: scale *= backoff, tracker = 0. Else tracker += 1; at growth_interval: tracker = 0 and the scale
//   grows
//            by growth_factor, unless that is not finite (pytorch#98828).
//            Never below min_scale.
//   STATIC   a constant; a step with found_inf is skipped all the same.
//   NONE     scale 1.
//
// Thread-safety: one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "worker/trainer/config/job.h"
#include "worker/trainer/json/json.h"

namespace mp::trainer {

class LossScaler {
 public:
  // State lives on `device`.
  explicit LossScaler(const LossScaleConfig& config, at::Device device = at::kCPU);

  // fp32 [], what the loss is multiplied by and gradients are divided by in this step.
  const at::Tensor& scale() const { return scale_; }
  // Whether a step with non-finite gradients is skipped (DYNAMIC, STATIC) rather than an error (NONE).
  bool skips() const { return config_.mode != LossScaleConfig::Mode::kNone; }
  // Call once a step, after the optimizer. found_inf: fp32 [], above 0 when a gradient of any rank was not finite.
  void Update(const at::Tensor& found_inf);

  // int64 []: how many steps in a row were skipped up to now.
  const at::Tensor& consecutive_skips() const { return consecutive_skips_; }
  // Whether so many are more than the job wants to see.
  bool GivesUp(int64_t consecutive_skips) const;

  // {"mode", "scale", "growth_tracker", "consecutive_skips"}; reading waits for the device.
  JsonValue State() const;
  // A state of another mode is left unused: the job's own settings win.
  void LoadState(const JsonValue& state);

 private:
  LossScaleConfig config_;
  at::Tensor scale_;              // fp32 []
  at::Tensor growth_tracker_;     // int32 []
  at::Tensor consecutive_skips_;  // int64 []
};

}  // namespace mp::trainer
