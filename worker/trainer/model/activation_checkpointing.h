// Activation checkpointing (Chen et al. 2016): a part of a layer keeps only its input in forward and runs again in
// backward.
//
//   y = Checkpointed([&](const at::Tensor& x) { return mlp(norm(x)); }, x, fp8_context);
//
// The second run sees the random numbers and the FP8 scales of the first and records no amax, so gradients are
// bit-identical to those without checkpointing. Parameters are leaves that `run` captured: their gradients are
// accumulated as usual, hooks included.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "worker/trainer/config/job.h"
#include "worker/trainer/model/activation_offload.h"
#include "worker/trainer/precision/fp8/context.h"

namespace mp::trainer {

// `run` is called now and, where grad mode is on, once more in backward; it must compute the same from the same x and
// stay valid until then. x must require a gradient for y to. fp8 null: no FP8 in `run`. offload null: x stays on the
// device.
at::Tensor Checkpointed(std::function<at::Tensor(const at::Tensor&)> run, const at::Tensor& x, fp8::Context* fp8,
                        ActivationOffload* offload = nullptr);

// Which parts of layer `index` are checkpointed.
struct CheckpointedParts {
  bool layer = false;
  bool attention = false;
  bool mlp = false;
};
CheckpointedParts PartsOf(const ActivationCheckpointingConfig& config, int64_t index);

}  // namespace mp::trainer
