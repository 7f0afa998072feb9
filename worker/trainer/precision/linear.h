// A linear layer outside FP8: y = round(x W^T + b), products exact, sums fp32, see the table in policy.h.
#pragma once

#include <ATen/core/Tensor.h>

namespace mp::trainer {

// x [..., in], weight [out, in], bias [out] or undefined; one type for all. Differentiable.
at::Tensor Linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

// What both kinds of linear layers share. y += bias, each element rounded to its type (in place).
void AddBias(at::Tensor* y, const at::Tensor& bias);
// Sum over rows of dy [rows, out], in fp32, rounded to dy's type.
at::Tensor BiasGradient(const at::Tensor& dy);

}  // namespace mp::trainer
