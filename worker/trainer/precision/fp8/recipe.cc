#include "worker/trainer/precision/fp8/recipe.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace mp::trainer::fp8 {

void UpdateScales(const Fp8Config& config, float fp8_max, int64_t tensors, float* history, float* scale) {
  const int64_t length = config.amax_history_len;
  const float target = std::ldexp(fp8_max, -config.margin);
  for (int64_t t = 0; t < tensors; ++t) {
    const auto at = [&](int64_t slot) -> float& { return history[slot * tensors + t]; };
    const float newest = at(0);
    if (newest == 0.0F) continue;
    float amax = newest;
    if (config.amax_compute_algo == Fp8Config::AmaxComputeAlgo::kMax) {
      for (int64_t slot = 1; slot < length; ++slot) amax = std::max(amax, at(slot));
    }
    if (amax > 0.0F && std::isfinite(amax)) {
      const float next = target / amax;
      scale[t] = std::isfinite(next) ? next : std::numeric_limits<float>::max();
    }
    for (int64_t slot = 0; slot + 1 < length; ++slot) at(slot) = at(slot + 1);
    at(length - 1) = newest;
    at(0) = 0.0F;
  }
}

void UpdateScales(const Fp8Config& config, float fp8_max, const at::Tensor& newest, at::Tensor& history,
                  at::Tensor& scale) {
  const int64_t length = config.amax_history_len;
  const at::Tensor cast = newest.ne(0);
  at::Tensor amax = newest;
  if (config.amax_compute_algo == Fp8Config::AmaxComputeAlgo::kMax && length > 1) {
    amax = at::maximum(newest, history.slice(0, 1).amax(0));
  }
  const at::Tensor next = at::full_like(amax, std::ldexp(fp8_max, -config.margin)) / amax;
  const at::Tensor bounded = next.clamp_max(std::numeric_limits<float>::max());
  scale.copy_(at::where(cast.logical_and(amax.gt(0)).logical_and(amax.isfinite()), bounded, scale));
  const at::Tensor fresh = at::zeros_like(newest).unsqueeze(0);
  const at::Tensor rolled =
      length == 1 ? fresh : at::cat({fresh, history.slice(0, 2), newest.unsqueeze(0)}).view({length, newest.numel()});
  history.copy_(at::where(cast, rolled, history));
}

}  // namespace mp::trainer::fp8
