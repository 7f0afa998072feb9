#include "worker/trainer/model/ops/rms_norm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <vector>

#include "worker/trainer/device/kernels.h"
#include "worker/trainer/model/ops/aten_ops.h"
#include "worker/trainer/precision/convert.h"
#include "worker/trainer/precision/vectorize.h"

namespace mp::trainer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int kLanes = 16;

MP_VECTORIZE float SumOfSquares(const float* x, int64_t count) {
  float sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) sums[lane] += x[i + lane] * x[i + lane];
  }
  float total = 0;
  for (; i < count; ++i) total += x[i] * x[i];
  for (const float sum : sums) total += sum;
  return total;
}

MP_VECTORIZE float Dot(const float* x, const float* y, int64_t count) {
  float sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) sums[lane] += x[i + lane] * y[i + lane];
  }
  float total = 0;
  for (; i < count; ++i) total += x[i] * y[i];
  for (const float sum : sums) total += sum;
  return total;
}

MP_VECTORIZE void Multiply(const float* x, float factor, float* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = x[i] * factor;
}

MP_VECTORIZE void MultiplyElements(const float* x, const float* y, float* z, int64_t count) {
  for (int64_t i = 0; i < count; ++i) z[i] = x[i] * y[i];
}

MP_VECTORIZE void AccumulateProduct(const float* x, const float* y, float* sum, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sum[i] += x[i] * y[i];
}

// dx = rstd * (g - normed * mean) with normed = x * rstd unrounded.
MP_VECTORIZE void InputGradient(const float* g, const float* x, float rstd, float mean, float* dx, int64_t count) {
  for (int64_t i = 0; i < count; ++i) dx[i] = rstd * (g[i] - x[i] * rstd * mean);
}

template <typename T>
void Forward(const T* x, const T* weight, double eps, T* y, float* rstd, int64_t rows, int64_t hidden) {
  const auto size = static_cast<size_t>(hidden);
  std::vector<float> wide(size);
  std::vector<float> scale(size);
  std::vector<T> scratch(size);
  ToFloat(weight, scale.data(), hidden);
  for (int64_t row = 0; row < rows; ++row) {
    ToFloat(x + row * hidden, wide.data(), hidden);
    const float mean = SumOfSquares(wide.data(), hidden) / static_cast<float>(hidden);
    rstd[row] = 1.0F / std::sqrt(mean + static_cast<float>(eps));
    Multiply(wide.data(), rstd[row], wide.data(), hidden);
    RoundTo(wide.data(), hidden, scratch.data());
    MultiplyElements(wide.data(), scale.data(), wide.data(), hidden);
    FromFloat(wide.data(), 1.0F, y + row * hidden, hidden);
  }
}

template <typename T>
void Backward(const T* dy, const T* x, const T* weight, const float* rstd, T* dx, T* dw, int64_t rows, int64_t hidden) {
  const auto size = static_cast<size_t>(hidden);
  std::vector<float> wide_dy(size);
  std::vector<float> wide_x(size);
  std::vector<float> normed(size);
  std::vector<float> gradient(size);
  std::vector<float> scale(size);
  std::vector<float> dw_sum(size, 0.0F);
  std::vector<T> scratch(size);
  ToFloat(weight, scale.data(), hidden);
  for (int64_t row = 0; row < rows; ++row) {
    ToFloat(dy + row * hidden, wide_dy.data(), hidden);
    ToFloat(x + row * hidden, wide_x.data(), hidden);
    Multiply(wide_x.data(), rstd[row], normed.data(), hidden);
    MultiplyElements(wide_dy.data(), scale.data(), gradient.data(), hidden);
    RoundTo(gradient.data(), hidden, scratch.data());
    const float mean = Dot(gradient.data(), normed.data(), hidden) / static_cast<float>(hidden);
    InputGradient(gradient.data(), wide_x.data(), rstd[row], mean, gradient.data(), hidden);
    FromFloat(gradient.data(), 1.0F, dx + row * hidden, hidden);
    RoundTo(normed.data(), hidden, scratch.data());
    AccumulateProduct(wide_dy.data(), normed.data(), dw_sum.data(), hidden);
  }
  FromFloat(dw_sum.data(), 1.0F, dw, hidden);
}

class RmsNormFunction : public torch::autograd::Function<RmsNormFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight, double eps) {
    if (!UsesCpuLoops(x)) {
      const aten_ops::Norm norm = aten_ops::RmsNorm(x, weight, eps);
      ctx->save_for_backward({x, weight, norm.rstd});
      return norm.y;
    }
    const int64_t hidden = x.size(-1);
    const int64_t rows = x.numel() / hidden;
    at::Tensor y = at::empty_like(x);
    at::Tensor rstd = at::empty({rows}, x.options().dtype(at::kFloat));
    DispatchFloatType(x.scalar_type(), [&]<typename T>(T) {
      Forward(x.const_data_ptr<T>(), weight.const_data_ptr<T>(), eps, y.mutable_data_ptr<T>(),
              rstd.mutable_data_ptr<float>(), rows, hidden);
    });
    ctx->save_for_backward({x, weight, rstd});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor dy = gradients[0].contiguous();
    if (!UsesCpuLoops(x)) {
      const aten_ops::NormGradients both = aten_ops::RmsNormBackward(dy, x, weight, saved[2]);
      return {both.dx, both.dw, at::Tensor()};
    }
    at::Tensor dx = at::empty_like(x);
    at::Tensor dw = at::empty_like(weight);
    const int64_t hidden = x.size(-1);
    DispatchFloatType(x.scalar_type(), [&]<typename T>(T) {
      Backward(dy.const_data_ptr<T>(), x.const_data_ptr<T>(), weight.const_data_ptr<T>(),
               saved[2].const_data_ptr<float>(), dx.mutable_data_ptr<T>(), dw.mutable_data_ptr<T>(), x.numel() / hidden,
               hidden);
    });
    return {dx, dw, at::Tensor()};
  }
};

}  // namespace

at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return RmsNormFunction::apply(x.contiguous(), weight, eps);
}

}  // namespace mp::trainer
