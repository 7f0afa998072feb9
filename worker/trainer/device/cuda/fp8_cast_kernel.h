// What the kernel needs of its launcher: no LibTorch here, for nvcc compiles it.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace mp::trainer {

enum class CastInput { kFloat, kBFloat16, kHalf };

// All pointers are the device's; the last three are zero before. amax_bits: of |x| as fp32, NaN left out.
struct CastArguments {
  const void* x;
  const float* scale;  // one
  uint8_t* codes;
  int64_t count;
  uint32_t* amax_bits;
  unsigned long long* underflows;
  unsigned long long* overflows;
};

// e5m2: else E4M3.
cudaError_t LaunchFp8Cast(const CastArguments& arguments, CastInput input, bool e5m2, cudaStream_t stream);

}  // namespace mp::trainer
