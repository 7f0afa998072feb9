// The cast to FP8 with its statistics in one pass over memory. Semantics: precision/fp8/aten_cast.h.
#pragma once

#include "worker/trainer/precision/fp8/aten_cast.h"

namespace mp::trainer {

// x: contiguous, fp32, bf16 or fp16, on the current device. Enqueued on the current stream.
fp8::AtenCast CudaCastToFp8(const at::Tensor& x, const at::Tensor& scale, fp8::Format format);

}  // namespace mp::trainer
