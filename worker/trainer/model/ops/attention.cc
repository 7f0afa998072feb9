#include "worker/trainer/model/ops/attention.h"

#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/csrc/autograd/custom_function.h>

#include <vector>

#include "worker/trainer/device/kernels.h"
#include "worker/trainer/model/ops/aten_ops.h"
#include "worker/trainer/precision/convert.h"
#include "worker/trainer/precision/vectorize.h"

namespace mp::trainer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// One head: (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin); `sign` -1 turns back.
MP_VECTORIZE void RotateHead(float* x, const float* cos, const float* sin, float sign, int64_t half) {
  float* second = x + half;
  for (int64_t i = 0; i < half; ++i) {
    const float s = sign * sin[i];
    const float a = x[i];
    const float b = second[i];
    x[i] = a * cos[i] - b * s;
    second[i] = b * cos[i] + a * s;
  }
}

// x and y: [batch * sequence, heads, head_dim]; y may be x.
template <typename In, typename Out>
void Rotate(const In* x, Out* y, const RopeTables& rope, float sign, int64_t rows, int64_t sequence, int64_t heads,
            int64_t head_dim) {
  const int64_t width = heads * head_dim;
  const int64_t half = head_dim / 2;
  std::vector<float> wide(static_cast<size_t>(width));
  const auto* cos = rope.cos.const_data_ptr<float>();
  const auto* sin = rope.sin.const_data_ptr<float>();
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t position = row % sequence;
    ToFloat(x + row * width, wide.data(), width);
    for (int64_t head = 0; head < heads; ++head) {
      RotateHead(wide.data() + head * head_dim, cos + position * half, sin + position * half, sign, half);
    }
    FromFloat(wide.data(), 1.0F, y + row * width, width);
  }
}

// [batch, sequence, heads * head_dim] of any type -> fp32 view [batch, heads, sequence, head_dim].
at::Tensor Heads(const at::Tensor& x, int64_t heads, int64_t head_dim) {
  return ToFloatTensor(x).view({x.size(0), x.size(1), heads, head_dim}).transpose(1, 2);
}

at::Tensor RepeatHeads(const at::Tensor& x, int64_t times) {
  if (times == 1) return x;
  const auto s = x.sizes();
  return x.unsqueeze(2).expand({s[0], s[1], times, s[2], s[3]}).reshape({s[0], s[1] * times, s[2], s[3]});
}

// Gradient of RepeatHeads.
at::Tensor SumRepeated(const at::Tensor& x, int64_t times) {
  if (times == 1) return x;
  const auto s = x.sizes();
  return x.reshape({s[0], s[1] / times, times, s[2], s[3]}).sum(2);
}

// [batch, heads, sequence, head_dim] fp32 -> [batch, sequence, heads * head_dim].
at::Tensor MergeHeads(const at::Tensor& x) {
  return x.transpose(1, 2).contiguous().view({x.size(0), x.size(2), x.size(1) * x.size(3)});
}

class RotaryAttentionFunction : public torch::autograd::Function<RotaryAttentionFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& cos, const at::Tensor& sin, int64_t heads, int64_t kv_heads,
                            int64_t head_dim) {
    const RopeTables rope{cos, sin};
    const at::Tensor rotated_q = Rotated(q, rope, 1.0F, heads, head_dim);
    const at::Tensor rotated_k = Rotated(k, rope, 1.0F, kv_heads, head_dim);
    const int64_t times = heads / kv_heads;
    auto [out, log_sum_exp] = at::_scaled_dot_product_flash_attention_for_cpu(
        Heads(rotated_q, heads, head_dim), RepeatHeads(Heads(rotated_k, kv_heads, head_dim), times),
        RepeatHeads(Heads(v, kv_heads, head_dim), times), 0.0, /*is_causal=*/true);
    at::Tensor merged = FromFloatTensor(MergeHeads(out), 1.0F, q.scalar_type());
    ctx->save_for_backward({rotated_q, rotated_k, v, merged, log_sum_exp, cos, sin});
    ctx->saved_data["heads"] = heads;
    ctx->saved_data["kv_heads"] = kv_heads;
    ctx->saved_data["head_dim"] = head_dim;
    return merged;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& q = saved[0];
    const RopeTables rope{saved[5], saved[6]};
    const int64_t heads = ctx->saved_data["heads"].toInt();
    const int64_t kv_heads = ctx->saved_data["kv_heads"].toInt();
    const int64_t head_dim = ctx->saved_data["head_dim"].toInt();
    const int64_t times = heads / kv_heads;
    const at::ScalarType type = q.scalar_type();
    auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        Heads(gradients[0].contiguous(), heads, head_dim), Heads(q, heads, head_dim),
        RepeatHeads(Heads(saved[1], kv_heads, head_dim), times),
        RepeatHeads(Heads(saved[2], kv_heads, head_dim), times), Heads(saved[3], heads, head_dim), saved[4], 0.0,
        /*is_causal=*/true);
    // The rotated tensors' gradients are of the half type before they are turned back, as their tensors are.
    const at::Tensor gq = FromFloatTensor(MergeHeads(dq), 1.0F, type);
    const at::Tensor gk = FromFloatTensor(MergeHeads(SumRepeated(dk, times)), 1.0F, type);
    const at::Tensor gv = FromFloatTensor(MergeHeads(SumRepeated(dv, times)), 1.0F, type);
    return {Rotated(gq, rope, -1.0F, heads, head_dim),
            Rotated(gk, rope, -1.0F, kv_heads, head_dim),
            gv,
            at::Tensor(),
            at::Tensor(),
            at::Tensor(),
            at::Tensor(),
            at::Tensor()};
  }

 private:
  static at::Tensor Rotated(const at::Tensor& x, const RopeTables& rope, float sign, int64_t heads, int64_t head_dim) {
    at::Tensor y = at::empty(x.sizes(), x.options());
    DispatchFloatType(x.scalar_type(), [&]<typename T>(T) {
      Rotate(x.const_data_ptr<T>(), y.mutable_data_ptr<T>(), rope, sign, x.size(0) * x.size(1), x.size(1), heads,
             head_dim);
    });
    return y;
  }
};

// Elsewhere than in our loops, the rotation and ATen's attention are steps of their own.
class RotationFunction : public torch::autograd::Function<RotationFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                            int64_t head_dim) {
    ctx->save_for_backward({cos, sin});
    ctx->saved_data["head_dim"] = head_dim;
    return aten_ops::Rotate(x, cos, sin, 1.0, head_dim);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    return {aten_ops::Rotate(gradients[0].contiguous(), saved[0], saved[1], -1.0, ctx->saved_data["head_dim"].toInt()),
            at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

at::Tensor AtenAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const RopeTables& rope,
                         const AttentionShape& shape) {
  const auto heads = [&](const at::Tensor& x) {
    return x.view({x.size(0), x.size(1), -1, shape.head_dim}).transpose(1, 2);
  };
  const at::Tensor rotated_q = RotationFunction::apply(q, rope.cos, rope.sin, shape.head_dim);
  const at::Tensor rotated_k = RotationFunction::apply(k, rope.cos, rope.sin, shape.head_dim);
  return MergeHeads(at::scaled_dot_product_attention(heads(rotated_q), heads(rotated_k), heads(v), {}, 0.0,
                                                     /*is_causal=*/true, {}, shape.heads != shape.kv_heads));
}

}  // namespace

RopeTables MakeRopeTables(int64_t positions, int64_t head_dim, double theta) {
  const auto options = at::TensorOptions().dtype(at::kFloat);
  const at::Tensor exponents = at::div(at::arange(0, head_dim, 2, options), static_cast<double>(head_dim));
  const at::Tensor inverse_frequency = at::reciprocal(at::pow(theta, exponents));
  const at::Tensor angles = at::outer(at::arange(0, positions, 1, options), inverse_frequency);
  return {angles.cos(), angles.sin()};
}

at::Tensor RotaryAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const RopeTables& rope,
                           const AttentionShape& shape) {
  TORCH_CHECK(q.size(1) <= rope.cos.size(0), "a sequence of ", q.size(1), " tokens is longer than the ",
              rope.cos.size(0), " positions of the model");
  if (!UsesCpuLoops(q)) return AtenAttention(q.contiguous(), k.contiguous(), v.contiguous(), rope, shape);
  return RotaryAttentionFunction::apply(q.contiguous(), k.contiguous(), v.contiguous(), rope.cos, rope.sin, shape.heads,
                                        shape.kv_heads, shape.head_dim);
}

}  // namespace mp::trainer
