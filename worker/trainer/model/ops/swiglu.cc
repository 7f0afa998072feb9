#include "worker/trainer/model/ops/swiglu.h"

#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "worker/trainer/device/kernels.h"
#include "worker/trainer/model/ops/aten_ops.h"
#include "worker/trainer/precision/convert.h"
#include "worker/trainer/precision/vectorize.h"

namespace mp::trainer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kBlock = 1024;  // elements; the scratch of a block stays in the first-level cache

MP_INLINE float Sigmoid(float x) {
  // With the exponential of a negative number, so that it never overflows.
  const float e = FastExp(x < 0.0F ? x : -x);
  const float positive = 1.0F / (1.0F + e);
  return x < 0.0F ? e * positive : positive;
}

MP_VECTORIZE void Silu(const float* x, float* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = x[i] * Sigmoid(x[i]);
}

MP_VECTORIZE void MultiplyElements(const float* x, const float* y, float* z, int64_t count) {
  for (int64_t i = 0; i < count; ++i) z[i] = x[i] * y[i];
}

// d silu(x) = s * (1 + x * (1 - s)), s = sigmoid(x)
MP_VECTORIZE void SiluGradient(const float* x, const float* dy, float* dx, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float s = Sigmoid(x[i]);
    dx[i] = dy[i] * (s * (1.0F + x[i] * (1.0F - s)));
  }
}

template <typename T>
void Forward(const T* gate, const T* up, T* y, int64_t count) {
  float g[kBlock];
  float u[kBlock];
  T scratch[kBlock];
  for (int64_t start = 0; start < count; start += kBlock) {
    const int64_t size = std::min(kBlock, count - start);
    ToFloat(gate + start, g, size);
    ToFloat(up + start, u, size);
    Silu(g, g, size);
    RoundTo(g, size, scratch);
    MultiplyElements(g, u, g, size);
    FromFloat(g, 1.0F, y + start, size);
  }
}

template <typename T>
void Backward(const T* dy, const T* gate, const T* up, T* dgate, T* dup, int64_t count) {
  float d[kBlock];
  float g[kBlock];
  float u[kBlock];
  float s[kBlock];
  T scratch[kBlock];
  for (int64_t start = 0; start < count; start += kBlock) {
    const int64_t size = std::min(kBlock, count - start);
    ToFloat(dy + start, d, size);
    ToFloat(gate + start, g, size);
    ToFloat(up + start, u, size);
    Silu(g, s, size);
    RoundTo(s, size, scratch);
    MultiplyElements(d, s, s, size);
    FromFloat(s, 1.0F, dup + start, size);
    MultiplyElements(d, u, u, size);
    RoundTo(u, size, scratch);
    SiluGradient(g, u, u, size);
    FromFloat(u, 1.0F, dgate + start, size);
  }
}

class SwiGluFunction : public torch::autograd::Function<SwiGluFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate, const at::Tensor& up) {
    if (!UsesCpuLoops(gate)) {
      ctx->save_for_backward({gate, up});
      return aten_ops::SwiGlu(gate, up);
    }
    at::Tensor y = at::empty_like(gate);
    DispatchFloatType(gate.scalar_type(), [&]<typename T>(T) {
      Forward(gate.const_data_ptr<T>(), up.const_data_ptr<T>(), y.mutable_data_ptr<T>(), gate.numel());
    });
    ctx->save_for_backward({gate, up});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor dy = gradients[0].contiguous();
    if (!UsesCpuLoops(dy)) {
      const auto [gate_gradient, up_gradient] = aten_ops::SwiGluBackward(dy, saved[0], saved[1]);
      return {gate_gradient, up_gradient};
    }
    at::Tensor dgate = at::empty_like(saved[0]);
    at::Tensor dup = at::empty_like(saved[1]);
    DispatchFloatType(dy.scalar_type(), [&]<typename T>(T) {
      Backward(dy.const_data_ptr<T>(), saved[0].const_data_ptr<T>(), saved[1].const_data_ptr<T>(),
               dgate.mutable_data_ptr<T>(), dup.mutable_data_ptr<T>(), dy.numel());
    });
    return {dgate, dup};
  }
};

}  // namespace

at::Tensor SwiGlu(const at::Tensor& gate, const at::Tensor& up) {
  return SwiGluFunction::apply(gate.contiguous(), up.contiguous());
}

}  // namespace mp::trainer
