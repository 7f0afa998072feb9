// Causal self-attention with rotary position embedding, between the projections.
//
// Rotation is half-split (rotate_half) with fp32 tables, its result rounded to the type of q; scores, softmax and the
// weighted sum are fp32 over those rounded values, the result is rounded once. Key and value heads are repeated for
// runs of query heads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace mp::trainer {

// cos and sin of position * theta^(-2i / head_dim), fp32 [positions, head_dim / 2], as Hugging Face computes them.
struct RopeTables {
  at::Tensor cos;
  at::Tensor sin;
};
RopeTables MakeRopeTables(int64_t positions, int64_t head_dim, double theta);

struct AttentionShape {
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
};

// q [batch, sequence, heads * head_dim], k and v [batch, sequence, kv_heads * head_dim], one type; the result has q's
// shape. Differentiable.
at::Tensor RotaryAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const RopeTables& rope,
                           const AttentionShape& shape);

}  // namespace mp::trainer
