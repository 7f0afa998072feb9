#include "worker/trainer/precision/fp8/formats.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "worker/trainer/precision/convert.h"
#include "worker/trainer/precision/gemm.h"
#include "worker/trainer/precision/vectorize.h"

namespace mp::trainer::fp8 {
namespace {

constexpr int64_t kBlock = 1024;  // elements; the scratch of a block stays in the first-level cache
// A format's constants. Code = sign, exponent, mantissa; fp32 has 23 mantissa bits and bias 127.
template <Format F>
struct Traits {
  static constexpr int kMantissa = F == Format::kE4M3 ? 3 : 2;
  static constexpr int kBias = F == Format::kE4M3 ? 7 : 15;
  static constexpr int kShift = 23 - kMantissa;
  static constexpr float kMax = MaxValue(F);
  static constexpr float kMinNormal = F == Format::kE4M3 ? 0x1p-6F : 0x1p-14F;
  // A number whose last mantissa bit is the smallest subnormal: adding it rounds to a multiple of that.
  static constexpr float kSubnormalMagic = F == Format::kE4M3 ? 0x1p14F : 0x1p7F;
  static constexpr uint32_t kExponentOffset = static_cast<uint32_t>(127 - kBias) << kMantissa;
  static constexpr uint32_t kNan = 0x7F;
};

struct BlockStatistics {
  uint32_t amax_bits = 0;  // of |x|; positive floats order as their bits do
  int32_t underflows = 0;
  int32_t overflows = 0;
};

// Both loops are without branches, calls or floating-point reductions, so that the compiler makes vector code of them;
// as one loop it threads jumps through the counters and gives up.
template <Format F>
MP_INLINE void EncodeBlock(const float* __restrict x, float scale, uint8_t* __restrict codes, float* __restrict values,
                           int64_t count) {
  using T = Traits<F>;
  constexpr uint32_t kMaxBits = std::bit_cast<uint32_t>(T::kMax);
  constexpr uint32_t kMinNormalBits = std::bit_cast<uint32_t>(T::kMinNormal);
  constexpr uint32_t kMagicBits = std::bit_cast<uint32_t>(T::kSubnormalMagic);
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(x[i] * scale);
    const uint32_t sign = bits & 0x80000000U;
    const uint32_t absolute = bits & 0x7FFFFFFFU;
    // NaN is handled by the caller.
    const uint32_t clamped = absolute > kMaxBits ? kMaxBits : absolute;
    const uint32_t rounded =
        (clamped + ((1U << (T::kShift - 1)) - 1) + ((clamped >> T::kShift) & 1)) & ~((1U << T::kShift) - 1);
    const float subnormal_sum = std::bit_cast<float>(clamped) + T::kSubnormalMagic;
    const uint32_t normal_code = (rounded >> T::kShift) - T::kExponentOffset;
    const uint32_t subnormal_code = std::bit_cast<uint32_t>(subnormal_sum) - kMagicBits;
    const uint32_t subnormal_bits = std::bit_cast<uint32_t>(subnormal_sum - T::kSubnormalMagic);
    const uint32_t code = clamped < kMinNormalBits ? subnormal_code : normal_code;
    const uint32_t value = clamped < kMinNormalBits ? subnormal_bits : rounded;
    codes[i] = static_cast<uint8_t>(code | (sign >> 24));
    values[i] = std::bit_cast<float>(value | sign);
  }
}

MP_INLINE uint32_t OneIf(bool condition) { return condition ? 1U : 0U; }

// Returns the largest |x| with NaN among them: in bits, NaN is above infinity.
template <Format F>
MP_INLINE uint32_t CountBlock(const float* __restrict x, float scale, const float* __restrict values, int64_t count,
                              BlockStatistics* statistics) {
  constexpr uint32_t kMaxBits = std::bit_cast<uint32_t>(Traits<F>::kMax);
  uint32_t largest = 0;
  uint32_t zeros_before = 0;
  uint32_t zeros_after = 0;
  uint32_t overflows = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(x[i]) & 0x7FFFFFFFU;
    const uint32_t scaled = std::bit_cast<uint32_t>(x[i] * scale) & 0x7FFFFFFFU;
    largest = magnitude > largest ? magnitude : largest;
    zeros_before += OneIf(magnitude == 0);
    zeros_after += OneIf((std::bit_cast<uint32_t>(values[i]) & 0x7FFFFFFFU) == 0);
    overflows += OneIf(scaled > kMaxBits);
  }
  statistics->amax_bits = largest;
  statistics->underflows = static_cast<int32_t>(zeros_after - zeros_before);
  statistics->overflows = static_cast<int32_t>(overflows);
  return largest;
}

// A block in which NaN was seen, done again one by one: NaN stays NaN and counts nowhere.
void MendNan(const float* x, float scale, float max, uint8_t* codes, float* values, int64_t count,
             BlockStatistics* statistics) {
  *statistics = {};
  for (int64_t i = 0; i < count; ++i) {
    const float scaled = x[i] * scale;
    if (std::isnan(scaled)) {
      const auto sign = static_cast<uint8_t>((std::bit_cast<uint32_t>(scaled) >> 24) & 0x80U);
      codes[i] = static_cast<uint8_t>(0x7FU | sign);
      values[i] = std::copysign(std::bit_cast<float>(0x7FC00000U), scaled);
    } else {
      statistics->underflows += x[i] != 0.0F && values[i] == 0.0F ? 1 : 0;
      statistics->overflows += std::fabs(scaled) > max ? 1 : 0;
    }
    if (!std::isnan(x[i])) {
      statistics->amax_bits = std::max(statistics->amax_bits, std::bit_cast<uint32_t>(x[i]) & 0x7FFFFFFFU);
    }
  }
}

template <Format F>
MP_INLINE void Encode(const float* x, float scale, uint8_t* codes, float* values, int64_t count,
                      BlockStatistics* statistics) {
  EncodeBlock<F>(x, scale, codes, values, count);
  const uint32_t largest = CountBlock<F>(x, scale, values, count, statistics);
  // Scales are finite and positive, so that a product is NaN only where x is; infinity is let through for the same
  // check.
  if (largest >= 0x7F800000U) MendNan(x, scale, Traits<F>::kMax, codes, values, count, statistics);
}

MP_VECTORIZE void EncodeE4M3(const float* x, float scale, uint8_t* codes, float* values, int64_t count,
                             BlockStatistics* statistics) {
  Encode<Format::kE4M3>(x, scale, codes, values, count, statistics);
}

MP_VECTORIZE void EncodeE5M2(const float* x, float scale, uint8_t* codes, float* values, int64_t count,
                             BlockStatistics* statistics) {
  Encode<Format::kE5M2>(x, scale, codes, values, count, statistics);
}

// Exponent and mantissa moved into fp32's place, then the bias corrected by a multiplication, which also handles
// subnormals.
template <Format F>
MP_INLINE void DecodeBlock(const uint8_t* __restrict codes, float* __restrict values, int64_t count) {
  using T = Traits<F>;
  const float correction = std::bit_cast<float>(static_cast<uint32_t>(127 + 127 - T::kBias) << 23);
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t code = codes[i];
    const float magnitude = std::bit_cast<float>((code & 0x7FU) << T::kShift) * correction;
    const uint32_t bits = (code & 0x7FU) == T::kNan ? 0x7FC00000U : std::bit_cast<uint32_t>(magnitude);
    values[i] = std::bit_cast<float>(bits | ((code & 0x80U) << 24));
  }
}

MP_VECTORIZE void DecodeE4M3(const uint8_t* codes, float* values, int64_t count) {
  DecodeBlock<Format::kE4M3>(codes, values, count);
}

MP_VECTORIZE void DecodeE5M2(const uint8_t* codes, float* values, int64_t count) {
  DecodeBlock<Format::kE5M2>(codes, values, count);
}

template <typename In, typename Out>
CastStatistics QuantiseAs(const In* x, float scale, Format format, uint8_t* codes, Out* values, int64_t count) {
  alignas(64) float wide[kBlock];
  alignas(64) float rounded[kBlock];
  CastStatistics total;
  for (int64_t start = 0; start < count; start += kBlock) {
    const int64_t size = std::min(kBlock, count - start);
    ToFloat(x + start, wide, size);
    BlockStatistics block;
    (format == Format::kE4M3 ? EncodeE4M3 : EncodeE5M2)(wide, scale, codes + start, rounded, size, &block);
    FromFloat(rounded, 1.0F, values + start, size);
    total.amax = std::max(total.amax, std::bit_cast<float>(block.amax_bits));
    total.underflows += block.underflows;
    total.overflows += block.overflows;
  }
  return total;
}

}  // namespace

Quantised Quantise(const at::Tensor& x, float scale, Format format) {
  TORCH_CHECK(x.is_contiguous(), "Quantise: a contiguous tensor is needed");
  Quantised result{
      at::empty(x.sizes(), x.options().dtype(at::kByte)), at::empty(x.sizes(), x.options().dtype(Fp8ValueType())), {}};
  DispatchFloatType(x.scalar_type(), [&]<typename In>(In) {
    DispatchFloatType(Fp8ValueType(), [&]<typename Out>(Out) {
      result.statistics = QuantiseAs(x.const_data_ptr<In>(), scale, format, result.codes.mutable_data_ptr<uint8_t>(),
                                     result.values.mutable_data_ptr<Out>(), x.numel());
    });
  });
  return result;
}

at::Tensor Decode(const at::Tensor& codes, Format format) {
  at::Tensor values = at::empty(codes.sizes(), codes.options().dtype(Fp8ValueType()));
  const auto* from = codes.const_data_ptr<uint8_t>();
  DispatchFloatType(Fp8ValueType(), [&]<typename Out>(Out) {
    alignas(64) float wide[kBlock];
    Out* to = values.mutable_data_ptr<Out>();
    for (int64_t start = 0; start < codes.numel(); start += kBlock) {
      const int64_t size = std::min(kBlock, codes.numel() - start);
      (format == Format::kE4M3 ? DecodeE4M3 : DecodeE5M2)(from + start, wide, size);
      FromFloat(wide, 1.0F, to + start, size);
    }
  });
  return values;
}

}  // namespace mp::trainer::fp8
