// Token embedding; its gradient is summed in fp32 and rounded once.
#pragma once

#include <ATen/core/Tensor.h>

namespace mp::trainer {

// ids int64 [...], weight [vocab, hidden] -> [..., hidden]. Ids must lie in the vocabulary. Differentiable in weight.
at::Tensor Embedding(const at::Tensor& ids, const at::Tensor& weight);

}  // namespace mp::trainer
