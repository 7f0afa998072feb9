#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>

#include "worker/trainer/device/cuda/fp8_cast_kernel.h"

namespace mp::trainer {
namespace {

constexpr int kThreads = 256;
constexpr int kWarp = 32;
constexpr int kMostBlocks = 1024;

__device__ float Wide(float x) { return x; }
__device__ float Wide(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ float Wide(__half x) { return __half2float(x); }

// Sums and maxima of integers alone, so that the order of blocks does not matter.
template <typename In, __nv_fp8_interpretation_t kFormat>
__global__ void Cast(CastArguments arguments) {
  const auto* x = static_cast<const In*>(arguments.x);
  const float scale = *arguments.scale;
  const float most = kFormat == __NV_E4M3 ? 448.0F : 57344.0F;
  unsigned amax = 0;
  unsigned underflows = 0;
  unsigned overflows = 0;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < arguments.count; i += stride) {
    const float value = Wide(x[i]);
    const float scaled = value * scale;
    const __nv_fp8_storage_t code = __nv_cvt_float_to_fp8(scaled, __NV_SATFINITE, kFormat);
    arguments.codes[i] = code;
    if (!isnan(value)) amax = max(amax, __float_as_uint(fabsf(value)));
    underflows += value != 0.0F && (code & 0x7F) == 0;
    overflows += fabsf(scaled) > most;
  }
  __shared__ unsigned parts[3][kThreads / kWarp];
  amax = __reduce_max_sync(0xFFFFFFFF, amax);
  underflows = __reduce_add_sync(0xFFFFFFFF, underflows);
  overflows = __reduce_add_sync(0xFFFFFFFF, overflows);
  if (threadIdx.x % kWarp == 0) {
    parts[0][threadIdx.x / kWarp] = amax;
    parts[1][threadIdx.x / kWarp] = underflows;
    parts[2][threadIdx.x / kWarp] = overflows;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < kThreads / kWarp; ++warp) {
    amax = max(amax, parts[0][warp]);
    underflows += parts[1][warp];
    overflows += parts[2][warp];
  }
  atomicMax(arguments.amax_bits, amax);
  if (underflows > 0) atomicAdd(arguments.underflows, static_cast<unsigned long long>(underflows));
  if (overflows > 0) atomicAdd(arguments.overflows, static_cast<unsigned long long>(overflows));
}

template <typename In>
void Launch(const CastArguments& arguments, bool e5m2, cudaStream_t stream) {
  const int64_t wanted = (arguments.count + kThreads - 1) / kThreads;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(wanted, kMostBlocks));
  if (e5m2) {
    Cast<In, __NV_E5M2><<<blocks, kThreads, 0, stream>>>(arguments);
  } else {
    Cast<In, __NV_E4M3><<<blocks, kThreads, 0, stream>>>(arguments);
  }
}

}  // namespace

cudaError_t LaunchFp8Cast(const CastArguments& arguments, CastInput input, bool e5m2, cudaStream_t stream) {
  if (arguments.count == 0) return cudaSuccess;
  switch (input) {
    case CastInput::kFloat:
      Launch<float>(arguments, e5m2, stream);
      break;
    case CastInput::kBFloat16:
      Launch<__nv_bfloat16>(arguments, e5m2, stream);
      break;
    case CastInput::kHalf:
      Launch<__half>(arguments, e5m2, stream);
      break;
  }
  return cudaGetLastError();
}

}  // namespace mp::trainer
