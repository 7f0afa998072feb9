// RMSNorm as Hugging Face's LlamaRMSNorm: y = weight * round(x * rsqrt(mean(x^2) + eps)), statistics in fp32, each
// product rounded to x's type.
#pragma once

#include <ATen/core/Tensor.h>

namespace mp::trainer {

// x [..., hidden] contiguous, weight [hidden], one type. Differentiable.
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps);

}  // namespace mp::trainer
