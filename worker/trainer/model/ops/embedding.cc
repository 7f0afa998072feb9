#include "worker/trainer/model/ops/embedding.h"

#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "worker/trainer/precision/convert.h"

namespace mp::trainer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class EmbeddingFunction : public torch::autograd::Function<EmbeddingFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& ids, const at::Tensor& weight) {
    ctx->save_for_backward({ids});
    ctx->saved_data["vocab"] = weight.size(0);
    auto shape = ids.sizes().vec();
    shape.push_back(weight.size(1));
    return at::index_select(weight, 0, ids.reshape({-1})).view(shape);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const at::Tensor ids = ctx->get_saved_variables()[0].reshape({-1});
    const at::Tensor& dy = gradients[0];
    const int64_t hidden = dy.size(-1);
    at::Tensor sum = at::zeros({ctx->saved_data["vocab"].toInt(), hidden}, dy.options().dtype(at::kFloat));
    sum.index_add_(0, ids, ToFloatTensor(dy.contiguous()).view({-1, hidden}));
    return {at::Tensor(), FromFloatTensor(sum, 1.0F, dy.scalar_type())};
  }
};

}  // namespace

at::Tensor Embedding(const at::Tensor& ids, const at::Tensor& weight) { return EmbeddingFunction::apply(ids, weight); }

}  // namespace mp::trainer
