// The model's fused operations in ATen's operations, for devices that our CPU loops don't serve. Same arguments, same
// roundings (the table in precision/policy.h); sums may be taken in another order. None of them reads a value back.
//
// Thread-safety: any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

namespace mp::trainer::aten_ops {

struct Norm {
  at::Tensor y;     // x's type and shape
  at::Tensor rstd;  // fp32, x's shape with 1 last
};
Norm RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps);
struct NormGradients {
  at::Tensor dx;
  at::Tensor dw;
};
NormGradients RmsNormBackward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                              const at::Tensor& rstd);

at::Tensor SwiGlu(const at::Tensor& gate, const at::Tensor& up);
// Gradients of gate and up.
std::pair<at::Tensor, at::Tensor> SwiGluBackward(const at::Tensor& dy, const at::Tensor& gate, const at::Tensor& up);

// Rotary position embedding, half-split. x [batch, sequence, heads * head_dim]; cos, sin fp32 [positions, head_dim /
// 2]. sign -1 turns back.
at::Tensor Rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, double sign, int64_t head_dim);

struct TokenLosses {
  at::Tensor sum;          // fp32 []
  at::Tensor log_sum_exp;  // fp32 [tokens]
};
// logits [tokens, vocab], labels int64 [tokens], -100 ignored.
TokenLosses CrossEntropy(const at::Tensor& logits, const at::Tensor& labels);
// In logits' type, times factor (fp32 []).
at::Tensor CrossEntropyBackward(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& log_sum_exp,
                                const at::Tensor& factor);

}  // namespace mp::trainer::aten_ops
