// Matrix products of values that are exact in their type, accumulated in fp32, rounded once to the output's type.
//
// On a CPU with bf16 instructions (AVX512-BF16, AMX) bf16 operands are multiplied as they are, by oneDNN where the
// result is bf16 and unscaled, else by MKL, which can give the fp32 sums; everywhere else operands are widened to fp32
// and multiplied there. Both sum exact products in fp32; they differ in the order of the sum. The choice depends on the
// CPU alone, or on the environment variable MP_CPU_GEMM (native | fp32), so a resumed run multiplies as before.
//
// On other devices plain products alone (alpha 1, out_type that of the operands) are there; FP8 has its own.
//
// Thread-safety: any thread.
#pragma once

#include <ATen/core/Tensor.h>

namespace mp::trainer {

// True when bf16 operands are multiplied without widening.
bool HasNativeBFloat16Gemm();

// The type in which FP8 values are handed to MatMul: bf16 holds every E4M3 and E5M2 value exactly.
inline at::ScalarType Fp8ValueType() { return HasNativeBFloat16Gemm() ? at::kBFloat16 : at::kFloat; }

// round(alpha * op(a) op(b)) with op the transposition where asked. a and b are contiguous matrices of one type (fp32,
// bf16, fp16); the result is [rows, columns] of `out_type`.
at::Tensor MatMul(const at::Tensor& a, bool transpose_a, const at::Tensor& b, bool transpose_b, float alpha,
                  at::ScalarType out_type);

}  // namespace mp::trainer
