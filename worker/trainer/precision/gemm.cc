#include "worker/trainer/precision/gemm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "worker/trainer/device/kernels.h"
#include "worker/trainer/precision/convert.h"

// MKL, linked into libtorch_cpu (LP64). Row-major is 101, no transposition 111, transposition 112.
extern "C" void cblas_gemm_bf16bf16f32(int layout, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
                                       const uint16_t* a, int lda, const uint16_t* b, int ldb, float beta, float* c,
                                       int ldc);

namespace mp::trainer {
namespace {

at::Tensor NativeBFloat16(const at::Tensor& a, bool transpose_a, const at::Tensor& b, bool transpose_b, int64_t m,
                          int64_t n, int64_t k, float alpha) {
  constexpr int kRowMajor = 101;
  constexpr int kNoTranspose = 111;
  constexpr int kTranspose = 112;
  at::Tensor c = at::empty({m, n}, a.options().dtype(at::kFloat));
  cblas_gemm_bf16bf16f32(kRowMajor, transpose_a ? kTranspose : kNoTranspose, transpose_b ? kTranspose : kNoTranspose,
                         static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), alpha,
                         static_cast<const uint16_t*>(a.const_data_ptr()), static_cast<int>(a.size(1)),
                         static_cast<const uint16_t*>(b.const_data_ptr()), static_cast<int>(b.size(1)), 0.0F,
                         c.mutable_data_ptr<float>(), static_cast<int>(n));
  return c;
}

}  // namespace

bool HasNativeBFloat16Gemm() {
  static const bool native = [] {
    const char* choice = std::getenv("MP_CPU_GEMM");  // NOLINT(concurrency-mt-unsafe): read once, nothing writes it
    if (choice != nullptr && std::string_view(choice) == "fp32") return false;
    if (choice != nullptr && std::string_view(choice) == "native") return true;
    return static_cast<bool>(__builtin_cpu_supports("avx512bf16"));
  }();
  return native;
}

at::Tensor MatMul(const at::Tensor& a, bool transpose_a, const at::Tensor& b, bool transpose_b, float alpha,
                  at::ScalarType out_type) {
  const int64_t m = a.size(transpose_a ? 1 : 0);
  const int64_t k = a.size(transpose_a ? 0 : 1);
  const int64_t n = b.size(transpose_b ? 0 : 1);
  TORCH_CHECK(k == b.size(transpose_b ? 1 : 0) && a.scalar_type() == b.scalar_type(), "MatMul: ", a.sizes(), " ",
              a.scalar_type(), " and ", b.sizes(), " ", b.scalar_type(), " do not go together");
  if (!UsesCpuLoops(a)) {
    // The library's kernels multiply halves exactly and sum in fp32 (device/cuda/cuda_device.cc sees to it).
    TORCH_CHECK(alpha == 1.0F && out_type == a.scalar_type(), "MatMul: only plain products have a kernel here");
    return at::mm(transpose_a ? a.t() : a, transpose_b ? b.t() : b);
  }
  if (m > 0 && n > 0 && k > 0 && a.scalar_type() == at::kBFloat16 && HasNativeBFloat16Gemm()) {
    if (out_type == at::kBFloat16 && alpha == 1.0F) return at::mm(transpose_a ? a.t() : a, transpose_b ? b.t() : b);
    return FromFloatTensor(NativeBFloat16(a, transpose_a, b, transpose_b, m, n, k, alpha), 1.0F, out_type);
  }
  const at::Tensor wide_a = ToFloatTensor(a);
  const at::Tensor wide_b = ToFloatTensor(b);
  return FromFloatTensor(at::mm(transpose_a ? wide_a.t() : wide_a, transpose_b ? wide_b.t() : wide_b), alpha, out_type);
}

}  // namespace mp::trainer
