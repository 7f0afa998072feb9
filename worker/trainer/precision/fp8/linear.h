// A linear layer whose three GEMMs take FP8 operands under delayed scaling.
//
//   forward    y  = q(x) q(W)^T / (s_x s_W)        q to the forward format (E4M3)
//   backward   dx = q(dy) q(W) / (s_dy s_W)        dy to the backward format (E5M2 under HYBRID)
//              dW = q(dy)^T q(x) / (s_dy s_x)
// Products are exact, sums fp32, results rounded to x's type. x is kept for backward as one byte an element; W is
// quantised again in backward with the scale of the forward, so that no rank holds an FP8 copy of a whole model.
// On a GPU the products are _scaled_mm's, with fast accumulation in forward alone.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "worker/trainer/precision/fp8/formats.h"
#include "worker/trainer/precision/fp8/tensor_state.h"

namespace mp::trainer::fp8 {

// What casts do at present, for all linears of a context.
struct CastMode {
  bool training = true;  // else histories and statistics stay as they are
  // A forward runs again in backward: its casts use the scales of the first time and leave no trace (TE#1190).
  bool recomputing = false;
};

class LinearState {
 public:
  LinearState(std::string name, Format forward, Format backward, const CastMode* mode, at::Device device = at::kCPU)
      : name_(std::move(name)),
        forward_(forward),
        backward_(backward),
        mode_(mode),
        input_(device),
        weight_(device),
        grad_output_(device) {}

  const std::string& name() const { return name_; }
  Format forward_format() const { return forward_; }
  Format backward_format() const { return backward_; }
  TensorState& input() { return input_; }
  TensorState& weight() { return weight_; }
  TensorState& grad_output() { return grad_output_; }

  // The scale of a cast now, fp32 [1].
  const at::Tensor& Scale(const TensorState& state) const {
    return mode_->recomputing ? state.step_scale : state.scale;
  }
  // Quantises and, when training, records: on a CPU with our loops, or anywhere to ATen's float8 type.
  Quantised Cast(const at::Tensor& x, TensorState* state, Format format) const;
  at::Tensor CastToAten(const at::Tensor& x, TensorState* state, Format format) const;

 private:
  bool Records() const { return mode_->training && !mode_->recomputing; }

  std::string name_;
  Format forward_;
  Format backward_;
  const CastMode* mode_;  // the context's
  TensorState input_;
  TensorState weight_;
  TensorState grad_output_;
};

// x [..., in] with a product of leading dims that is a multiple of 16, weight [out, in], bias [out] or undefined, all
// of one type. `state` must outlive the backward pass. Differentiable.
at::Tensor Fp8Linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, LinearState* state);

// Empty when a linear of these dims can run in FP8, else why not. The rules of _scaled_mm on CUDA, held on every
// device: all of out, in and tokens are multiples of 16, since each is the inner or a leading dimension of one of the
// three GEMMs.
std::string WhyNotEligible(int64_t out_features, int64_t in_features, int64_t tokens);

}  // namespace mp::trainer::fp8
