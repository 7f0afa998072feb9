#include "worker/trainer/model/ops/cross_entropy.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <vector>

#include "worker/trainer/device/kernels.h"
#include "worker/trainer/model/ops/aten_ops.h"
#include "worker/trainer/precision/convert.h"
#include "worker/trainer/precision/gemm.h"
#include "worker/trainer/precision/vectorize.h"

namespace mp::trainer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int kLanes = 16;
constexpr int64_t kIgnored = -100;

MP_VECTORIZE float Largest(const float* x, int64_t count) {
  float lanes[kLanes];
  for (float& lane : lanes) lane = -INFINITY;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = x[i + lane] > lanes[lane] ? x[i + lane] : lanes[lane];
  }
  float largest = -INFINITY;
  for (; i < count; ++i) largest = x[i] > largest ? x[i] : largest;
  for (const float lane : lanes) largest = lane > largest ? lane : largest;
  return largest;
}

MP_VECTORIZE float SumExp(const float* x, float shift, int64_t count) {
  float sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) sums[lane] += FastExp(x[i + lane] - shift);
  }
  float total = 0;
  for (; i < count; ++i) total += FastExp(x[i] - shift);
  for (const float sum : sums) total += sum;
  return total;
}

MP_VECTORIZE void Softmax(const float* x, float log_sum_exp, float* p, int64_t count) {
  for (int64_t i = 0; i < count; ++i) p[i] = FastExp(x[i] - log_sum_exp);
}

// NaN and infinite logits must reach the loss: the maximum ignores NaN, so they are looked for.
bool AllFinite(const float* x, int64_t count) {
  float sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += x[i] * 0.0F;
  return sum == 0.0F;
}

template <typename T>
double Losses(const T* logits, const int64_t* labels, float* log_sum_exp, int64_t tokens, int64_t vocab) {
  std::vector<float> row(static_cast<size_t>(vocab));
  double total = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    log_sum_exp[t] = 0;
    if (labels[t] == kIgnored) continue;
    ToFloat(logits + t * vocab, row.data(), vocab);
    const float largest = Largest(row.data(), vocab);
    log_sum_exp[t] = AllFinite(row.data(), vocab) ? largest + std::log(SumExp(row.data(), largest, vocab)) : NAN;
    total += static_cast<double>(log_sum_exp[t]) - static_cast<double>(row[static_cast<size_t>(labels[t])]);
  }
  return total;
}

// Overwrites logits with their gradient.
template <typename T>
void Gradients(T* logits, const int64_t* labels, const float* log_sum_exp, float factor, int64_t tokens,
               int64_t vocab) {
  std::vector<float> row(static_cast<size_t>(vocab));
  for (int64_t t = 0; t < tokens; ++t) {
    T* to = logits + t * vocab;
    if (labels[t] == kIgnored) {
      std::fill(to, to + vocab, T(0));
      continue;
    }
    ToFloat(to, row.data(), vocab);
    if (std::isnan(log_sum_exp[t])) {
      std::fill(row.begin(), row.end(), NAN);
    } else {
      Softmax(row.data(), log_sum_exp[t], row.data(), vocab);
    }
    row[static_cast<size_t>(labels[t])] -= 1.0F;
    FromFloat(row.data(), factor, to, vocab);
  }
}

class HeadCrossEntropyFunction : public torch::autograd::Function<HeadCrossEntropyFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& labels) {
    at::Tensor logits = MatMul(x, false, weight, true, 1.0F, x.scalar_type());
    if (!UsesCpuLoops(x)) {
      const aten_ops::TokenLosses losses = aten_ops::CrossEntropy(logits, labels);
      ctx->save_for_backward({x, weight, labels, logits, losses.log_sum_exp});
      return losses.sum;
    }
    at::Tensor log_sum_exp = at::empty({x.size(0)}, x.options().dtype(at::kFloat));
    double loss = 0;
    DispatchFloatType(x.scalar_type(), [&]<typename T>(T) {
      loss = Losses(logits.const_data_ptr<T>(), labels.const_data_ptr<int64_t>(), log_sum_exp.mutable_data_ptr<float>(),
                    x.size(0), weight.size(0));
    });
    ctx->save_for_backward({x, weight, labels, logits, log_sum_exp});
    return at::full({}, loss, x.options().dtype(at::kFloat));
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& weight = saved[1];
    at::Tensor logits = saved[3];  // becomes its gradient in place: it is not needed again
    if (!UsesCpuLoops(x)) {
      logits = aten_ops::CrossEntropyBackward(logits, saved[2], saved[4], gradients[0]);
    } else {
      DispatchFloatType(x.scalar_type(), [&]<typename T>(T) {
        Gradients(logits.mutable_data_ptr<T>(), saved[2].const_data_ptr<int64_t>(), saved[4].const_data_ptr<float>(),
                  gradients[0].item<float>(), x.size(0), weight.size(0));
      });
    }
    return {MatMul(logits, false, weight, false, 1.0F, x.scalar_type()),
            MatMul(logits, true, x, false, 1.0F, weight.scalar_type()), at::Tensor()};
  }
};

}  // namespace

at::Tensor HeadCrossEntropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& labels) {
  return HeadCrossEntropyFunction::apply(x.contiguous(), weight, labels.contiguous());
}

}  // namespace mp::trainer
