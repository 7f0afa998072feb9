// Delayed scaling: the update of scales from amax histories, as Transformer Engine defines it
// (transformer_engine/common/recipe/delayed_scaling.cu). Pure arithmetic on arrays
// or tensors.
//
// For each tensor t with history h[0..L-1], h[0] being the amax of the step that ends (reduced over ranks already):
//   1. h[0] == 0 exactly (nothing was cast): scale and history stay as they are.
//   2. amax = max(h[0..L-1]) with MAX, h[0] with MOST_RECENT.
//   3. amax > 0 and finite: scale = fp8_max * 2^-margin / amax, the largest float where that overflows. Else scale
//   stays.
//   4. h is rolled by -1 (h[i] = h[i+1], h[L-1] = old h[0]) and h[0] = 0.
//
// Thread-safety: none of its own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "worker/trainer/config/job.h"

namespace mp::trainer::fp8 {

// history: [length, tensors] row-major; scale: [tensors].
void UpdateScales(const Fp8Config& config, float fp8_max, int64_t tensors, float* history, float* scale);
// The same in place on tensors, wherever they are and without reading them. newest: fp32 [tensors], the h[0];
// history: fp32 [length, tensors]; scale: fp32 [tensors].
void UpdateScales(const Fp8Config& config, float fp8_max, const at::Tensor& newest, at::Tensor& history,
                  at::Tensor& scale);

}  // namespace mp::trainer::fp8
