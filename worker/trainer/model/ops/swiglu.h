// The gated activation of Llama's MLP: round(round(silu(gate)) * up), silu in fp32, rounded where PyTorch rounds.
#pragma once

#include <ATen/core/Tensor.h>

namespace mp::trainer {

// gate and up: one shape, one type, contiguous. Differentiable.
at::Tensor SwiGlu(const at::Tensor& gate, const at::Tensor& up);

}  // namespace mp::trainer
