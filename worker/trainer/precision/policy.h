// A precision policy at work: which type each tensor has and how a linear layer multiplies.
//
//   op                          input          compute                     output
//   embedding                   param_dtype    copy                        param_dtype
//   linear, FP32                fp32           fp32 GEMM                   fp32
//   linear, BF16 / FP16         param_dtype    exact products, fp32 sum    param_dtype
//   linear, FP8                 E4M3 / E5M2    exact products, fp32 sum    param_dtype
//   RMSNorm                     param_dtype    fp32 statistics; rounded    param_dtype
//                                              to param_dtype before * w
//   RoPE                        param_dtype    fp32 tables and products    param_dtype
//   attention                   param_dtype    fp32 scores and softmax     param_dtype
//   SiLU * up                   param_dtype    fp32; SiLU's result         param_dtype
//                                              rounded before * up
//   residual add                param_dtype    fp32                        param_dtype
//   logits                      param_dtype    exact products, fp32 sum    param_dtype
//   loss                        logits         fp32                        fp32
//   gradients of all of these   as their tensors; sums over tokens (norm weights, biases, embedding) in fp32, rounded
//   once gradient reduction          reduce_dtype   fp32 sum                    fp32 shard clip, optimizer, schedule
//   fp32           fp32                        fp32
#pragma once

#include <c10/core/ScalarType.h>

#include "worker/trainer/config/job.h"

namespace mp::trainer {

inline bool UsesFp8(const PrecisionConfig& precision) { return precision.policy == PrecisionConfig::Policy::kFP8; }

}  // namespace mp::trainer
