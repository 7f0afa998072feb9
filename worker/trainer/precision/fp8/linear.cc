#include "worker/trainer/precision/fp8/linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/reciprocal.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "worker/trainer/device/kernels.h"
#include "worker/trainer/precision/fp8/aten_cast.h"
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

// What both forms of the layer keep between forward and backward.
void Keep(AutogradContext* ctx, LinearState* state, bool has_bias) {
  ctx->saved_data["state"] = c10::IValue::make_capsule(c10::make_intrusive<StateReference>(state));
  ctx->saved_data["has_bias"] = has_bias;
}

LinearState* StateOf(AutogradContext* ctx) {
  return c10::static_intrusive_pointer_cast<StateReference>(ctx->saved_data["state"].toCapsule())->state;
}

at::Tensor BiasGradientIfAny(AutogradContext* ctx, const at::Tensor& dy) {
  return ctx->saved_data["has_bias"].toBool() ? BiasGradient(dy) : at::Tensor();
}

// x's shape with another last dimension.
std::vector<int64_t> WithLast(const at::Tensor& x, int64_t last) {
  auto shape = x.sizes().vec();
  shape.back() = last;
  return shape;
}

float Value(const at::Tensor& scalar) { return *scalar.const_data_ptr<float>(); }

class Fp8LinearFunction : public torch::autograd::Function<Fp8LinearFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, LinearState* state) {
    const at::Tensor rows = x.reshape({-1, x.size(-1)}).contiguous();
    TORCH_CHECK(WhyNotEligible(weight.size(0), weight.size(1), rows.size(0)).empty(), state->name(), ": ",
                WhyNotEligible(weight.size(0), weight.size(1), rows.size(0)));
    const float input_scale = Value(state->Scale(state->input()));
    const float weight_scale = Value(state->Scale(state->weight()));
    const Quantised qx = state->Cast(rows, &state->input(), state->forward_format());
    const Quantised qw = state->Cast(weight, &state->weight(), state->forward_format());
    const float alpha = (1.0F / input_scale) * (1.0F / weight_scale);
    at::Tensor y = MatMul(qx.values, false, qw.values, true, alpha, x.scalar_type());
    if (bias) AddBias(&y, *bias);
    ctx->save_for_backward({qx.codes, weight});
    Keep(ctx, state, bias.has_value());
    ctx->saved_data["input_scale"] = static_cast<double>(input_scale);
    ctx->saved_data["weight_scale"] = static_cast<double>(weight_scale);
    return y.view(WithLast(x, weight.size(0)));
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    LinearState* state = StateOf(ctx);
    const auto input_scale = static_cast<float>(ctx->saved_data["input_scale"].toDouble());
    const auto weight_scale = static_cast<float>(ctx->saved_data["weight_scale"].toDouble());
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& x_codes = saved[0];
    const at::Tensor& weight = saved[1];
    const at::ScalarType type = weight.scalar_type();
    const at::Tensor dy = gradients[0].reshape({-1, weight.size(0)}).contiguous();

    const float dy_scale = Value(state->grad_output().scale);
    const at::Tensor dy_values = state->Cast(dy, &state->grad_output(), state->backward_format()).values;
    at::Tensor dx;
    {
      const at::Tensor weight_values = Quantise(weight, weight_scale, state->forward_format()).values;
      dx = MatMul(dy_values, false, weight_values, false, (1.0F / dy_scale) * (1.0F / weight_scale), type);
    }
    const at::Tensor x_values = Decode(x_codes, state->forward_format());
    const at::Tensor dw = MatMul(dy_values, true, x_values, false, (1.0F / dy_scale) * (1.0F / input_scale), type);
    return {dx.view(WithLast(gradients[0], weight.size(1))), dw, BiasGradientIfAny(ctx, dy), at::Tensor()};
  }
};

// The same on _scaled_mm. Scales stay on the device; copies of those that forward used are kept, for an update of the
// context may come before backward.
class ScaledLinearFunction : public torch::autograd::Function<ScaledLinearFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, LinearState* state) {
    const at::Tensor rows = x.reshape({-1, x.size(-1)}).contiguous();
    const at::Tensor weight_scale = state->Scale(state->weight()).clone();
    const at::Tensor input_inverse = state->Scale(state->input()).reciprocal();
    const at::Tensor qx = state->CastToAten(rows, &state->input(), state->forward_format());
    const at::Tensor qw = state->CastToAten(weight, &state->weight(), state->forward_format());
    at::Tensor y = ScaledMatMul(qx, false, qw, true, input_inverse, weight_scale.reciprocal(), x.scalar_type(),
                                /*fast_accumulation=*/true);
    if (bias) AddBias(&y, *bias);
    ctx->save_for_backward({qx, weight, input_inverse, weight_scale});
    Keep(ctx, state, bias.has_value());
    return y.view(WithLast(x, weight.size(0)));
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    LinearState* state = StateOf(ctx);
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& qx = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor& input_inverse = saved[2];
    const at::Tensor& weight_scale = saved[3];
    const at::ScalarType type = weight.scalar_type();
    const at::Tensor dy = gradients[0].reshape({-1, weight.size(0)}).contiguous();
    const at::Tensor dy_inverse = state->grad_output().scale.reciprocal();
    const at::Tensor qdy = state->CastToAten(dy, &state->grad_output(), state->backward_format());
    const at::Tensor qw = CastByAten(weight, weight_scale, state->forward_format()).codes;
    const at::Tensor dx =
        ScaledMatMul(qdy, false, qw, false, dy_inverse, weight_scale.reciprocal(), type, /*fast_accumulation=*/false);
    const at::Tensor dw =
        ScaledMatMul(qdy, true, qx, false, dy_inverse, input_inverse, type, /*fast_accumulation=*/false);
    return {dx.view(WithLast(gradients[0], weight.size(1))), dw, BiasGradientIfAny(ctx, dy), at::Tensor()};
  }
};

}  // namespace

Quantised LinearState::Cast(const at::Tensor& x, TensorState* state, Format format) const {
  Quantised result = Quantise(x, Value(Scale(*state)), format);
  if (Records()) {
    const auto raise = [&](at::Tensor& amax) {
      auto* value = amax.mutable_data_ptr<float>();
      *value = std::max(*value, result.statistics.amax);
    };
    raise(state->amax);
    raise(state->step_amax);
    *state->underflows.mutable_data_ptr<int64_t>() += result.statistics.underflows;
    *state->overflows.mutable_data_ptr<int64_t>() += result.statistics.overflows;
    state->elements += x.numel();
  }
  return result;
}

at::Tensor LinearState::CastToAten(const at::Tensor& x, TensorState* state, Format format) const {
  AtenCast cast = CastByAten(x, Scale(*state), format);
  if (Records()) {
    at::maximum_out(state->amax, state->amax, cast.amax);
    at::maximum_out(state->step_amax, state->step_amax, cast.amax);
    state->underflows.add_(cast.underflows);
    state->overflows.add_(cast.overflows);
    state->elements += x.numel();
  }
  return cast.codes;
}

at::Tensor Fp8Linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, LinearState* state) {
  const auto optional_bias = bias.defined() ? std::optional(bias) : std::nullopt;
  if (UsesCpuLoops(x)) return Fp8LinearFunction::apply(x, weight, optional_bias, state);
  return ScaledLinearFunction::apply(x, weight, optional_bias, state);
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
