// The cast to FP8 in ATen's operations, for devices that our CPU loops (formats.h) don't serve: the same codes, and
// statistics that stay on the device.
//
// Thread-safety: any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include "worker/trainer/precision/fp8/formats.h"

namespace mp::trainer::fp8 {

// kFloat8_e4m3fn or kFloat8_e5m2.
inline at::ScalarType AtenType(Format format) {
  return format == Format::kE4M3 ? at::kFloat8_e4m3fn : at::kFloat8_e5m2;
}

struct AtenCast {
  at::Tensor codes;       // AtenType(format), x's shape
  at::Tensor amax;        // fp32 [1], see CastStatistics
  at::Tensor underflows;  // int64 [1]
  at::Tensor overflows;   // int64 [1]
};

// x: fp32, bf16 or fp16, not empty; scale: fp32 [1] on x's device.
AtenCast CastByAten(const at::Tensor& x, const at::Tensor& scale, Format format);

// A device's own kernel with the same result, for tensors on a GPU from now on. At start, before other threads.
using CastKernel = AtenCast (*)(const at::Tensor& x, const at::Tensor& scale, Format format);
void SetCudaCast(CastKernel kernel);

// op(a) op(b) / (scale_a scale_b) on codes by _scaled_mm, op the transposition where asked; operands are laid out as
// the GPU's kernels want them (a row-major, b column-major). inverse_scale_*: fp32 [1]. `fast_accumulation` lets
// Hopper sum in its 14-bit accumulators. Throws c10::Error where the shapes break the kernels' rules.
at::Tensor ScaledMatMul(const at::Tensor& a, bool transpose_a, const at::Tensor& b, bool transpose_b,
                        const at::Tensor& inverse_scale_a, const at::Tensor& inverse_scale_b, at::ScalarType out_type,
                        bool fast_accumulation);

}  // namespace mp::trainer::fp8
