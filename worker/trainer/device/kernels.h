// Which implementation of an operation a tensor gets: loops of our own for CPUs, or ATen's operations, which every
// device has. Both follow the table in precision/policy.h; they differ in the order of sums.
//
// Thread-safety: any thread.
#pragma once

#include <ATen/core/Tensor.h>

namespace mp::trainer {

// True for tensors on the CPU, unless the environment variable MP_CPU_KERNELS is "aten": then a CPU runs the operations
// that a GPU runs, for tests and for comparing numerics.
bool UsesCpuLoops(const at::Tensor& tensor);

}  // namespace mp::trainer
