#include "worker/trainer/optim/gradients.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include "worker/trainer/device/kernels.h"
#include "worker/trainer/precision/vectorize.h"

namespace mp::trainer {
namespace {

// In fp64: squares of fp32 gradients that a loss scale has made large must not overflow.
MP_VECTORIZE double SumOfSquares(const float* x, int64_t count) {
  constexpr int kLanes = 8;
  double sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      sums[lane] += static_cast<double>(x[i + lane]) * static_cast<double>(x[i + lane]);
    }
  }
  double total = 0;
  for (; i < count; ++i) total += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  for (const double sum : sums) total += sum;
  return total;
}

}  // namespace

GradientSummary SummariseGradients(const std::vector<ShardView>& shards, const at::Tensor& scale, double max_norm,
                                   Collectives* shard_group) {
  at::Tensor squares = at::zeros({}, shards.front().gradient.options().dtype(at::kDouble));
  for (const ShardView& shard : shards) {
    if (UsesCpuLoops(shard.gradient)) {
      squares.add_(SumOfSquares(shard.gradient.const_data_ptr<float>(), shard.gradient.numel()));
    } else {
      squares.add_(at::linalg_vector_norm(shard.gradient, 2, std::nullopt, false, at::kDouble).square());
    }
  }
  shard_group->AllReduce(squares, Collectives::Op::kSum);
  GradientSummary summary;
  // A sum of squares in fp64 of finite fp32 numbers is finite, so it is finite just when all of them are.
  summary.found_inf = at::isfinite(squares).logical_not().to(at::kFloat);
  const at::Tensor wide_scale = scale.to(squares.device(), at::kDouble);
  summary.norm = squares.sqrt() / wide_scale;
  at::Tensor factor = wide_scale.reciprocal();
  if (max_norm > 0) factor = factor * (max_norm / (summary.norm + 1e-6)).clamp_max(1.0);
  summary.factor = factor.to(at::kFloat);
  return summary;
}

}  // namespace mp::trainer
