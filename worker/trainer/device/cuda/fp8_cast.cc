#include "worker/trainer/device/cuda/fp8_cast.h"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAException.h>

#include "worker/trainer/device/cuda/fp8_cast_kernel.h"

namespace mp::trainer {
namespace {

CastInput InputOf(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kFloat:
      return CastInput::kFloat;
    case at::kBFloat16:
      return CastInput::kBFloat16;
    case at::kHalf:
      return CastInput::kHalf;
    default:
      TORCH_CHECK(false, "the cast to FP8 takes float32, bfloat16 or float16, not ", x.scalar_type());
  }
}

unsigned long long* Counter(at::Tensor& tensor) {
  return reinterpret_cast<unsigned long long*>(tensor.mutable_data_ptr<int64_t>());
}

}  // namespace

fp8::AtenCast CudaCastToFp8(const at::Tensor& x, const at::Tensor& scale, fp8::Format format) {
  const at::Tensor source = x.contiguous();
  fp8::AtenCast result;
  result.codes = at::empty(x.sizes(), x.options().dtype(fp8::AtenType(format)));
  result.amax = at::zeros({1}, x.options().dtype(at::kFloat));
  at::Tensor counters = at::zeros({2}, x.options().dtype(at::kLong));
  result.underflows = counters.slice(0, 0, 1);
  result.overflows = counters.slice(0, 1, 2);
  const CastArguments arguments = {source.const_data_ptr(),
                                   scale.const_data_ptr<float>(),
                                   static_cast<uint8_t*>(result.codes.mutable_data_ptr()),
                                   x.numel(),
                                   reinterpret_cast<uint32_t*>(result.amax.mutable_data_ptr<float>()),
                                   Counter(result.underflows),
                                   Counter(result.overflows)};
  C10_CUDA_CHECK(
      LaunchFp8Cast(arguments, InputOf(x), format == fp8::Format::kE5M2, at::cuda::getCurrentCUDAStream().stream()));
  return result;
}

}  // namespace mp::trainer
