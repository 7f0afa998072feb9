#include "worker/trainer/precision/fp8/recipe.h"

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

}  // namespace mp::trainer::fp8
