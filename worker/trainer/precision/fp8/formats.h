// The two FP8 formats (OCP 8-bit floating point): E4M3 (largest 448, no infinities, NaN 0x7F) and E5M2 (largest 57344).
//
// Quantise is one pass over memory: q = saturate(round_to_nearest_even(x * scale)), with the statistics of the cast.
// Infinities saturate; NaN stays NaN. Thread-safety: any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace mp::trainer::fp8 {

enum class Format { kE4M3, kE5M2 };

inline constexpr float MaxValue(Format format) { return format == Format::kE4M3 ? 448.0F : 57344.0F; }

struct CastStatistics {
  float amax = 0;          // largest |x| before scaling; NaN does not count, infinity does
  int64_t underflows = 0;  // x != 0 that became 0
  int64_t overflows = 0;   // |x * scale| > MaxValue
};

struct Quantised {
  at::Tensor codes;   // uint8, x's shape
  at::Tensor values;  // the same values (not divided by the scale) in Fp8ValueType(), x's shape
  CastStatistics statistics;
};

// x: contiguous fp32, bf16 or fp16.
Quantised Quantise(const at::Tensor& x, float scale, Format format);

// The values of uint8 codes, in Fp8ValueType().
at::Tensor Decode(const at::Tensor& codes, Format format);

}  // namespace mp::trainer::fp8
