#include "worker/trainer/precision/convert.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <cpuid.h>
#include <immintrin.h>

#include <cstring>

#include "worker/trainer/device/kernels.h"
#include "worker/trainer/precision/vectorize.h"

namespace mp::trainer {
namespace {

MP_VECTORIZE void BFloat16BitsToFloat(const uint16_t* from, uint32_t* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<uint32_t>(from[i]) << 16;
}

MP_VECTORIZE void FloatToBFloat16Bits(const float* from, float factor, uint16_t* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float value = from[i] * factor;
    const auto bits = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    to[i] = static_cast<uint16_t>((bits & 0x7FFFFFFF) > 0x7F800000 ? 0x7FC0 : rounded);
  }
}

MP_VECTORIZE void Scale(const float* from, float factor, float* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = from[i] * factor;
}

// Asked of the processor: clang before 16 doesn't know the name in __builtin_cpu_supports, which does know whether the
// operating system keeps AVX's registers.
bool HasF16c() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __builtin_cpu_supports("avx") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

const bool kHasF16c = HasF16c();

__attribute__((target("avx,f16c"))) int64_t HalfToFloatF16c(const uint16_t* from, float* to, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  }
  return i;
}

__attribute__((target("avx,f16c"))) int64_t FloatToHalfF16c(const float* from, float factor, uint16_t* to,
                                                            int64_t count) {
  const __m256 factors = _mm256_set1_ps(factor);
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 value = _mm256_mul_ps(_mm256_loadu_ps(from + i), factors);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
  }
  return i;
}

}  // namespace

void ToFloat(const float* from, float* to, int64_t count) {
  std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
}

void ToFloat(const c10::BFloat16* from, float* to, int64_t count) {
  BFloat16BitsToFloat(reinterpret_cast<const uint16_t*>(from), reinterpret_cast<uint32_t*>(to), count);
}

void ToFloat(const c10::Half* from, float* to, int64_t count) {
  int64_t i = kHasF16c ? HalfToFloatF16c(reinterpret_cast<const uint16_t*>(from), to, count) : 0;
  for (; i < count; ++i) to[i] = static_cast<float>(from[i]);
}

void FromFloat(const float* from, float factor, float* to, int64_t count) { Scale(from, factor, to, count); }

void FromFloat(const float* from, float factor, c10::BFloat16* to, int64_t count) {
  FloatToBFloat16Bits(from, factor, reinterpret_cast<uint16_t*>(to), count);
}

void FromFloat(const float* from, float factor, c10::Half* to, int64_t count) {
  int64_t i = kHasF16c ? FloatToHalfF16c(from, factor, reinterpret_cast<uint16_t*>(to), count) : 0;
  for (; i < count; ++i) to[i] = static_cast<c10::Half>(from[i] * factor);
}

at::Tensor ToFloatTensor(const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kFloat) return tensor;
  if (!UsesCpuLoops(tensor)) return tensor.to(at::kFloat);
  at::Tensor result = at::empty(tensor.sizes(), tensor.options().dtype(at::kFloat));
  DispatchFloatType(tensor.scalar_type(), [&]<typename T>(T) {
    ToFloat(tensor.const_data_ptr<T>(), result.mutable_data_ptr<float>(), tensor.numel());
  });
  return result;
}

at::Tensor FromFloatTensor(const at::Tensor& tensor, float factor, at::ScalarType type) {
  if (type == at::kFloat && factor == 1.0F) return tensor;
  if (!UsesCpuLoops(tensor)) return (factor == 1.0F ? tensor : tensor * factor).to(type);
  at::Tensor result = at::empty(tensor.sizes(), tensor.options().dtype(type));
  DispatchFloatType(type, [&]<typename T>(T) {
    FromFloat(tensor.const_data_ptr<float>(), factor, result.mutable_data_ptr<T>(), tensor.numel());
  });
  return result;
}

}  // namespace mp::trainer
