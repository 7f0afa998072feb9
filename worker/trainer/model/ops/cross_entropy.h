// The head: logits = round(x W^T), then the sum of token losses in fp32, without fp32 copies of all logits.
#pragma once

#include <ATen/core/Tensor.h>

namespace mp::trainer {

// x [tokens, hidden], weight [vocab, hidden] of one type, labels int64 [tokens], -100 is ignored. Returns fp32 []: the
// sum over valid labels of log(sum(exp(logits))) - logits[label]. Differentiable in x and weight; the gradient of the
// logits is rounded to x's type after multiplication with the incoming gradient, so that a loss scale reaches it.
at::Tensor HeadCrossEntropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& labels);

}  // namespace mp::trainer
