// Loops that the compiler turns into vector code for the CPU at hand, chosen at load time: AVX-512, AVX2 or plain
// x86-64. Contraction to fused multiply-add is off for the whole trainer, so that all three give the same numbers.
#pragma once

#include <bit>
#include <cstdint>

// In front of a function whose loops are to be vectorised. Such functions must not be templates or inline.
#define MP_VECTORIZE __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
// For helpers that are inlined into them.
#define MP_INLINE inline __attribute__((always_inline))

namespace mp::trainer {

// e^x in fp32, relative error below 3e-7 for x in [-87, 88]; 0 below, clamped above. Cephes' expf in a form without
// branches.
MP_INLINE float FastExp(float x) {
  const float clamped = x < -87.0F ? -87.0F : (x > 88.0F ? 88.0F : x);
  constexpr float kMagic = 12582912.0F;  // 1.5 * 2^23: adding it rounds to a whole number
  const float shifted = clamped * 1.44269504088896341F + kMagic;
  const float n = shifted - kMagic;
  float r = clamped - n * 0.693359375F;
  r = r + n * 2.12194440e-4F;
  float p = 1.9875691500E-4F;
  p = p * r + 1.3981999507E-3F;
  p = p * r + 8.3334519073E-3F;
  p = p * r + 4.1665795894E-2F;
  p = p * r + 1.6666665459E-1F;
  p = p * r + 5.0000001201E-1F;
  const float mantissa = p * (r * r) + r + 1.0F;
  const auto exponent = static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23;
  const float result = mantissa * std::bit_cast<float>(exponent);
  return x < -87.0F ? 0.0F : result;
}

}  // namespace mp::trainer
