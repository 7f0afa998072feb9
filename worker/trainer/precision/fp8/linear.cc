#include "worker/trainer/precision/fp8/linear.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <optional>

#include "worker/trainer/precision/gemm.h"
#include "worker/trainer/precision/linear.h"

namespace mp::trainer::fp8 {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Autograd keeps plain values and counted objects between forward and backward: this carries the state's address.
struct StateReference : torch::CustomClassHolder {
  explicit StateReference(LinearState* referent) : state(referent) {}
  LinearState* state;
};

class Fp8LinearFunction : public torch::autograd::Function<Fp8LinearFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, LinearState* state) {
    const at::Tensor rows = x.reshape({-1, x.size(-1)}).contiguous();
    TORCH_CHECK(WhyNotEligible(weight.size(0), weight.size(1), rows.size(0)).empty(), state->name(), ": ",
                WhyNotEligible(weight.size(0), weight.size(1), rows.size(0)));
    const float input_scale = state->Scale(state->input());
    const float weight_scale = state->Scale(state->weight());
    const Quantised qx = state->Cast(rows, &state->input(), state->forward_format());
    const Quantised qw = state->Cast(weight, &state->weight(), state->forward_format());
    const float alpha = (1.0F / input_scale) * (1.0F / weight_scale);
    at::Tensor y = MatMul(qx.values, false, qw.values, true, alpha, x.scalar_type());
    if (bias) AddBias(&y, *bias);
    ctx->save_for_backward({qx.codes, weight});
    ctx->saved_data["state"] = c10::IValue::make_capsule(c10::make_intrusive<StateReference>(state));
    ctx->saved_data["input_scale"] = static_cast<double>(input_scale);
    ctx->saved_data["weight_scale"] = static_cast<double>(weight_scale);
    ctx->saved_data["has_bias"] = bias.has_value();
    auto shape = x.sizes().vec();
    shape.back() = weight.size(0);
    return y.view(shape);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    LinearState* state =
        c10::static_intrusive_pointer_cast<StateReference>(ctx->saved_data["state"].toCapsule())->state;
    const auto input_scale = static_cast<float>(ctx->saved_data["input_scale"].toDouble());
    const auto weight_scale = static_cast<float>(ctx->saved_data["weight_scale"].toDouble());
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& x_codes = saved[0];
    const at::Tensor& weight = saved[1];
    const at::ScalarType type = weight.scalar_type();
    const at::Tensor dy = gradients[0].reshape({-1, weight.size(0)}).contiguous();

    const float dy_scale = state->grad_output().scale;
    const at::Tensor dy_values = state->Cast(dy, &state->grad_output(), state->backward_format()).values;
    at::Tensor dx;
    {
      const at::Tensor weight_values = Quantise(weight, weight_scale, state->forward_format()).values;
      dx = MatMul(dy_values, false, weight_values, false, (1.0F / dy_scale) * (1.0F / weight_scale), type);
    }
    const at::Tensor x_values = Decode(x_codes, state->forward_format());
    const at::Tensor dw = MatMul(dy_values, true, x_values, false, (1.0F / dy_scale) * (1.0F / input_scale), type);
    auto shape = gradients[0].sizes().vec();
    shape.back() = weight.size(1);
    return {dx.view(shape), dw, ctx->saved_data["has_bias"].toBool() ? BiasGradient(dy) : at::Tensor(), at::Tensor()};
  }
};

}  // namespace

Quantised LinearState::Cast(const at::Tensor& x, TensorState* state, Format format) const {
  Quantised result = Quantise(x, Scale(*state), format);
  if (mode_->training && !mode_->recomputing) {
    state->amax = std::max(state->amax, result.statistics.amax);
    state->step_amax = std::max(state->step_amax, result.statistics.amax);
    state->step_scale = state->scale;
    state->elements += x.numel();
    state->underflows += result.statistics.underflows;
    state->overflows += result.statistics.overflows;
  }
  return result;
}

at::Tensor Fp8Linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, LinearState* state) {
  return Fp8LinearFunction::apply(x, weight, bias.defined() ? std::optional(bias) : std::nullopt, state);
}

std::string WhyNotEligible(int64_t out_features, int64_t in_features, int64_t tokens) {
  const auto odd = [](int64_t value) { return value % 16 != 0; };
  if (odd(out_features)) return "output dim " + std::to_string(out_features) + " is not a multiple of 16";
  if (odd(in_features)) return "input dim " + std::to_string(in_features) + " is not a multiple of 16";
  if (odd(tokens)) {
    return std::to_string(tokens) + " tokens in a micro-batch (batch size x sequence length) are not a multiple of 16";
  }
  return "";
}

}  // namespace mp::trainer::fp8
