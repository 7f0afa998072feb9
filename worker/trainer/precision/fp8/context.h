// FP8 state of a model under delayed scaling: for each tensor (a linear's input, weight, output gradient) a scale and
// an amax history, and the step statistics that users look at. Semantics: Transformer Engine's DelayedScaling; see the
// formulas at each function.
//
// Life of one optimizer step:
//   context.BeginStep();                     // weights' casts are stale, statistics are zeroed
//   for each micro-batch: forward, backward  // linears quantise with the current scales and raise history[0]
//   context.UpdateForward(reduce);           // after the last micro-batch's forward (never in evaluation)
//   context.UpdateBackward(reduce);          // after the last micro-batch's backward
// `reduce` is an in-place MAX all-reduce over the FP8 group of one fp32 vector of amaxes.
//
// Thread-safety: one thread for all calls but those of autograd's backward, which the owner must not overlap with
// others.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "worker/trainer/config/job.h"

namespace mp::trainer::fp8 {

enum class TensorKind { kInput, kWeight, kGradOutput };

// Statistics of one tensor in the present step, summed over its casts.
struct TensorStatistics {
  std::string layer;
  TensorKind kind = TensorKind::kInput;
  double amax = 0;   // largest |x| of this rank
  double scale = 1;  // that the casts used
  double underflow_share = 0;
  double overflow_share = 0;
};

using MaxReduce = std::function<void(at::Tensor&)>;

class LinearState;  // scales, histories and statistics of one linear's three tensors; see linear.h

class Context {
 public:
  // Scales, histories and statistics live on `device`.
  explicit Context(const Fp8Config& config, at::Device device = at::kCPU);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // State for one linear layer, created in the order of calls. The context owns it.
  LinearState* AddLinear(const std::string& name);

  void BeginStep();
  void UpdateForward(const MaxReduce& reduce);
  void UpdateBackward(const MaxReduce& reduce);

  // Evaluation: casts use the scales and leave histories and statistics alone.
  void set_training(bool training);
  // While a forward runs again in backward (activation checkpointing): casts use the scales of this step's forwards and
  // leave histories and statistics alone.
  void set_recomputing(bool recomputing);

  // What casts of this step left so far, as it is on the device (opaque), and its reading, which waits for the device.
  struct Snapshot {
    at::Tensor forward;
    at::Tensor backward;
    std::vector<int64_t> elements;
  };
  Snapshot TakeSnapshot();
  std::vector<TensorStatistics> Statistics(const Snapshot& snapshot) const;

  // fp32 tensors on the CPU by name: "fp8.forward.scale" [2n], "fp8.forward.amax_history" [L, 2n], "fp8.backward.scale"
  // [n], "fp8.backward.amax_history" [L, n]. Loading checks names and shapes and throws TrainerError(kCheckpoint).
  std::map<std::string, at::Tensor> StateDict();
  void LoadStateDict(const std::map<std::string, at::Tensor>& state);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mp::trainer::fp8
