#include "worker/trainer/precision/fp8/aten_cast.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/sum.h>

#include <limits>

namespace mp::trainer::fp8 {
namespace {

CastKernel cuda_cast = nullptr;

// Contiguous transposition of codes, as bytes: not every kernel knows float8.
at::Tensor Transposed(const at::Tensor& codes) {
  return codes.view(at::kByte).t().contiguous().view(codes.scalar_type());
}

}  // namespace

void SetCudaCast(CastKernel kernel) { cuda_cast = kernel; }

AtenCast CastByAten(const at::Tensor& x, const at::Tensor& scale, Format format) {
  if (x.is_cuda() && cuda_cast != nullptr) return cuda_cast(x, scale, format);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double most = MaxValue(format);
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor scaled = wide * scale;
  AtenCast result;
  // Casts do not saturate by themselves; clamp leaves NaN as it is.
  result.codes = scaled.clamp(-most, most).to(AtenType(format));
  result.amax = wide.abs().nan_to_num(0.0, kInfinity).amax().view({1});
  result.overflows = scaled.abs().gt(most).sum().view({1});
  // The sign bit apart, a code is 0 just where its value is.
  const at::Tensor is_zero = result.codes.view(at::kByte).bitwise_and(0x7F).eq(0);
  result.underflows = wide.ne(0).logical_and(is_zero).sum().view({1});
  return result;
}

at::Tensor ScaledMatMul(const at::Tensor& a, bool transpose_a, const at::Tensor& b, bool transpose_b,
                        const at::Tensor& inverse_scale_a, const at::Tensor& inverse_scale_b, at::ScalarType out_type,
                        bool fast_accumulation) {
  const at::Tensor row_major = transpose_a ? Transposed(a) : a;
  const at::Tensor column_major = transpose_b ? b.t() : Transposed(b).t();
  // Asserted on every device: a CPU accepts more than a GPU does.
  TORCH_CHECK(row_major.size(1) % 16 == 0 && column_major.size(0) % 16 == 0 && column_major.size(1) % 16 == 0,
              "FP8 product of ", row_major.sizes(), " and ", column_major.sizes(),
              ": the inner dimension and both of the second operand must be multiples of 16");
  TORCH_CHECK(a.scalar_type() != at::kFloat8_e5m2 || b.scalar_type() != at::kFloat8_e5m2,
              "FP8 product: one operand at most may be E5M2");
  return at::_scaled_mm(row_major, column_major, inverse_scale_a, inverse_scale_b, {}, {}, out_type, fast_accumulation);
}

}  // namespace mp::trainer::fp8
