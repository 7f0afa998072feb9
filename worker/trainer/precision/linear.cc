#include "worker/trainer/precision/linear.h"

#include <ATen/ops/sum.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "worker/trainer/precision/gemm.h"

namespace mp::trainer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class LinearFunction : public torch::autograd::Function<LinearFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias) {
    const at::Tensor rows = x.reshape({-1, x.size(-1)});
    at::Tensor y = MatMul(rows, false, weight, true, 1.0F, x.scalar_type());
    if (bias) AddBias(&y, *bias);
    ctx->save_for_backward({rows, weight});
    ctx->saved_data["has_bias"] = bias.has_value();
    auto shape = x.sizes().vec();
    shape.back() = weight.size(0);
    return y.view(shape);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor dy = gradients[0].reshape({-1, weight.size(0)}).contiguous();
    auto shape = gradients[0].sizes().vec();
    shape.back() = weight.size(1);
    const at::Tensor dx = MatMul(dy, false, weight, false, 1.0F, x.scalar_type()).view(shape);
    const at::Tensor dw = MatMul(dy, true, x, false, 1.0F, weight.scalar_type());
    return {dx, dw, ctx->saved_data["has_bias"].toBool() ? BiasGradient(dy) : at::Tensor()};
  }
};

}  // namespace

at::Tensor Linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return LinearFunction::apply(x, weight, bias.defined() ? std::optional(bias) : std::nullopt);
}

void AddBias(at::Tensor* y, const at::Tensor& bias) { y->add_(bias); }

at::Tensor BiasGradient(const at::Tensor& dy) { return at::sum(dy, {0}, false, at::kFloat).to(dy.scalar_type()); }

}  // namespace mp::trainer
