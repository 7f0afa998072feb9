// The numbers that delayed scaling keeps for each tensor, in one table for all tensors of a direction: one vector is
// reduced over ranks, one update makes all scales, and nothing is read back from a device.
//
// Thread-safety: none of its own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace mp::trainer::fp8 {

// One tensor's part in a step: views of its column in a table, each of one element.
struct TensorState {
  explicit TensorState(at::Device device);

  at::Tensor scale;  // fp32: for the next cast
  at::Tensor amax;   // fp32: slot 0 of the history, over all casts since the last update

  // Since BeginStep.
  at::Tensor step_scale;  // fp32: of the step's casts
  at::Tensor step_amax;   // fp32
  at::Tensor underflows;  // int64
  at::Tensor overflows;   // int64
  int64_t elements = 0;   // cast
};

// The columns of `tensors`, side by side.
class StateTable {
 public:
  // Lays the states in new columns with their present values, on `device`.
  StateTable(const std::vector<TensorState*>& tensors, at::Device device);

  int64_t size() const { return scale_.numel(); }
  at::Tensor& scale() { return scale_; }  // fp32 [n]
  at::Tensor& amax() { return amax_; }    // fp32 [n]
  // Clears what belongs to a step.
  void BeginStep();
  // fp64 [4, n]: step amax, step scale, underflows, overflows. A copy, on the device.
  at::Tensor Statistics() const;

 private:
  at::Tensor scale_;
  at::Tensor amax_;
  at::Tensor step_scale_;
  at::Tensor step_amax_;
  at::Tensor underflows_;
  at::Tensor overflows_;
};

}  // namespace mp::trainer::fp8
