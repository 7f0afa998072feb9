#include "worker/trainer/model/ops/aten_ops.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

namespace mp::trainer::aten_ops {
namespace {

constexpr int64_t kIgnored = -100;

// Rounded to `type` and wide again.
at::Tensor RoundedTo(at::ScalarType type, const at::Tensor& x) { return x.to(type).to(at::kFloat); }

}  // namespace

Norm RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor wide = x.to(at::kFloat);
  Norm norm;
  norm.rstd = (wide.square().mean(-1, /*keepdim=*/true) + eps).rsqrt();
  norm.y = (RoundedTo(x.scalar_type(), wide * norm.rstd) * weight.to(at::kFloat)).to(x.scalar_type());
  return norm;
}

NormGradients RmsNormBackward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                              const at::Tensor& rstd) {
  const at::ScalarType type = x.scalar_type();
  const at::Tensor wide_dy = dy.to(at::kFloat);
  const at::Tensor normed = x.to(at::kFloat) * rstd;
  const at::Tensor gradient = RoundedTo(type, wide_dy * weight.to(at::kFloat));
  const at::Tensor mean = (gradient * normed).mean(-1, /*keepdim=*/true);
  NormGradients gradients;
  gradients.dx = (rstd * (gradient - normed * mean)).to(type);
  gradients.dw = (wide_dy * RoundedTo(type, normed)).reshape({-1, x.size(-1)}).sum(0).to(type);
  return gradients;
}

at::Tensor SwiGlu(const at::Tensor& gate, const at::Tensor& up) {
  const at::ScalarType type = gate.scalar_type();
  return (RoundedTo(type, at::silu(gate.to(at::kFloat))) * up.to(at::kFloat)).to(type);
}

std::pair<at::Tensor, at::Tensor> SwiGluBackward(const at::Tensor& dy, const at::Tensor& gate, const at::Tensor& up) {
  const at::ScalarType type = gate.scalar_type();
  const at::Tensor wide_dy = dy.to(at::kFloat);
  const at::Tensor wide_gate = gate.to(at::kFloat);
  const at::Tensor dup = (wide_dy * RoundedTo(type, at::silu(wide_gate))).to(type);
  const at::Tensor dsilu = RoundedTo(type, wide_dy * up.to(at::kFloat));
  return {at::silu_backward(dsilu, wide_gate).to(type), dup};
}

at::Tensor Rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, double sign, int64_t head_dim) {
  const int64_t sequence = x.size(1);
  const at::Tensor heads = x.to(at::kFloat).view({x.size(0), sequence, -1, 2, head_dim / 2});
  const at::Tensor first = heads.select(3, 0);
  const at::Tensor second = heads.select(3, 1);
  const at::Tensor c = cos.slice(0, 0, sequence).unsqueeze(1);
  const at::Tensor s = sin.slice(0, 0, sequence).unsqueeze(1) * sign;
  return at::cat({first * c - second * s, second * c + first * s}, -1).view(x.sizes()).to(x.scalar_type());
}

TokenLosses CrossEntropy(const at::Tensor& logits, const at::Tensor& labels) {
  const at::Tensor wide = logits.to(at::kFloat);
  TokenLosses losses;
  losses.log_sum_exp = at::logsumexp(wide, {-1});
  const at::Tensor chosen = wide.gather(1, labels.clamp_min(0).unsqueeze(1)).squeeze(1);
  const at::Tensor loss = at::where(labels.ne(kIgnored), losses.log_sum_exp - chosen, at::zeros_like(chosen));
  losses.sum = loss.to(at::kDouble).sum().to(at::kFloat);
  return losses;
}

at::Tensor CrossEntropyBackward(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& log_sum_exp,
                                const at::Tensor& factor) {
  at::Tensor gradient = (logits.to(at::kFloat) - log_sum_exp.unsqueeze(1)).exp_();
  const at::Tensor places = labels.clamp_min(0).unsqueeze(1);
  gradient.scatter_(1, places, gradient.gather(1, places) - 1.0);
  const at::Tensor valid = labels.ne(kIgnored).unsqueeze(1);
  return at::where(valid, gradient.mul_(factor), at::zeros_like(factor)).to(logits.scalar_type());
}

}  // namespace mp::trainer::aten_ops
