// What optimizer steps leave behind. It stays on the device: counting and recording wait for nothing, and the loop
// reads a frame one step after it was recorded, when its values are there anyway.
//
// Thread-safety: one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "worker/trainer/optim/gradients.h"
#include "worker/trainer/sharding/collectives.h"

namespace mp::trainer {

struct StepResult {
  at::Tensor loss_sum;           // fp64 []: token losses of this rank
  at::Tensor tokens;             // fp64 []: valid labels of all ranks
  GradientSummary gradients;     // of all ranks
  at::Tensor learning_rate;      // fp64 []
  at::Tensor scale;              // fp32 []: the loss scale of this step
  at::Tensor consecutive_skips;  // int64 []: this step included
};

class StepMetrics {
 public:
  struct Totals {
    int64_t skipped_steps = 0;
    int64_t tokens = 0;  // of all ranks
  };
  struct Frame {
    int64_t step = 0;
    double loss = 0;  // mean over the tokens of all ranks
    double grad_norm = 0;
    double learning_rate = 0;
    double loss_scale = 0;
    int64_t consecutive_skips = 0;
    int64_t non_finite_step = 0;  // the first step since the frame before whose gradients were not finite; 0: none
    Totals totals;
  };

  // `world` must outlive this.
  explicit StepMetrics(Collectives* world, at::Device device = at::kCPU);

  // Once a step.
  void Count(int64_t step, const StepResult& result);
  // After Count, at a logging step, on every rank: sums the loss over ranks and keeps what a frame needs.
  void Record(int64_t step, const StepResult& result);
  bool has_frame() const { return recorded_.defined(); }
  // The recorded frame, once. Waits for the device.
  Frame TakeFrame();

  // For checkpoints. Reading waits for the device.
  Totals totals() const;
  void set_totals(const Totals& totals);

 private:
  Collectives* world_;
  at::Tensor skipped_steps_;    // fp64 []
  at::Tensor tokens_;           // fp64 []
  at::Tensor non_finite_step_;  // fp64 []
  int64_t recorded_step_ = 0;
  at::Tensor recorded_;  // fp64 [kValues] while a frame waits
};

}  // namespace mp::trainer
