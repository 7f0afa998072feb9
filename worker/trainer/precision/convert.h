// Conversion between fp32 and the half types, element by element, round to nearest even; NaN stays NaN. Exact with
// ATen's casts, in bulk and vectorised.
//
// Thread-safety: any thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstdint>

namespace mp::trainer {

void ToFloat(const float* from, float* to, int64_t count);
void ToFloat(const c10::BFloat16* from, float* to, int64_t count);
void ToFloat(const c10::Half* from, float* to, int64_t count);
// to = round(from * factor)
void FromFloat(const float* from, float factor, float* to, int64_t count);
void FromFloat(const float* from, float factor, c10::BFloat16* to, int64_t count);
void FromFloat(const float* from, float factor, c10::Half* to, int64_t count);

// Rounds `values` in place to what T can hold; nothing for fp32.
template <typename T>
void RoundTo(float* values, int64_t count, T* scratch) {
  if constexpr (!std::is_same_v<T, float>) {
    FromFloat(values, 1.0F, scratch, count);
    ToFloat(scratch, values, count);
  }
}

// Whole tensors, contiguous: a fresh tensor of the other type (the same tensor when the type is right already).
at::Tensor ToFloatTensor(const at::Tensor& tensor);
// fp32 tensor times factor, rounded to `type`.
at::Tensor FromFloatTensor(const at::Tensor& tensor, float factor, at::ScalarType type);

// Calls f(T{}) with the C++ type of fp32, bf16 or fp16.
template <typename F>
void DispatchFloatType(at::ScalarType type, F&& f) {
  switch (type) {
    case at::kFloat:
      return f(float{});
    case at::kBFloat16:
      return f(c10::BFloat16{});
    case at::kHalf:
      return f(c10::Half{});
    default:
      TORCH_CHECK(false, "float32, bfloat16 or float16 was expected, not ", type);
  }
}

}  // namespace mp::trainer
