// Each fused op against the plain formula, in every type, forward and backward.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/golden/golden_file.h"
#include "worker/trainer/model/ops/attention.h"
#include "worker/trainer/model/ops/cross_entropy.h"
#include "worker/trainer/model/ops/embedding.h"
#include "worker/trainer/model/ops/rms_norm.h"
#include "worker/trainer/model/ops/swiglu.h"

namespace mp::trainer {
namespace {

class ModelOpsTest : public testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override { at::manual_seed(7); }

  at::ScalarType type() const { return GetParam(); }
  // How far two orders of summing and rounding may lie apart.
  double tolerance() const { return type() == at::kFloat ? 2e-6 : type() == at::kHalf ? 1e-3 : 8e-3; }

  at::Tensor Leaf(at::IntArrayRef shape) const { return at::randn(shape).to(type()).set_requires_grad(true); }

  // The plain formula on the same values in fp32, its leaves apart.
  static at::Tensor Wide(const at::Tensor& leaf) { return leaf.detach().to(at::kFloat).set_requires_grad(true); }

  void ExpectSame(const at::Tensor& ours, const at::Tensor& plain,
                  const std::vector<std::pair<at::Tensor, at::Tensor>>& leaves) const {
    EXPECT_LE(RelativeDistance(ours.detach(), plain.detach()), tolerance());
    const at::Tensor gradient = at::randn(ours.sizes()).to(ours.scalar_type());
    torch::autograd::backward({ours}, {gradient});
    torch::autograd::backward({plain}, {gradient.to(plain.scalar_type())});
    for (size_t i = 0; i < leaves.size(); ++i) {
      EXPECT_LE(RelativeDistance(leaves[i].first.grad(), leaves[i].second.grad()), 2 * tolerance()) << "input " << i;
    }
  }
};

TEST_P(ModelOpsTest, RmsNorm) {
  const at::Tensor x = Leaf({3, 5, 70});
  const at::Tensor w = Leaf({70});
  const at::Tensor px = Wide(x);
  const at::Tensor pw = Wide(w);
  const at::Tensor plain = px * at::rsqrt(px.pow(2).mean(-1, true) + 1e-5) * pw;
  ExpectSame(RmsNorm(x, w, 1e-5), plain, {{x, px}, {w, pw}});
}

TEST_P(ModelOpsTest, SwiGlu) {
  const at::Tensor gate = Leaf({7, 1100});
  const at::Tensor up = Leaf({7, 1100});
  const at::Tensor pg = Wide(gate);
  const at::Tensor pu = Wide(up);
  ExpectSame(SwiGlu(gate, up), at::silu(pg) * pu, {{gate, pg}, {up, pu}});
}

TEST_P(ModelOpsTest, SwiGluOfLargeValues) {
  const at::Tensor gate = at::tensor({-1000.0F, -88.5F, -20.0F, 0.0F, 20.0F, 88.5F, 1000.0F}).to(type());
  const at::Tensor y = SwiGlu(gate, at::ones_like(gate));
  EXPECT_TRUE(y.isfinite().all().item<bool>());
  EXPECT_LE(RelativeDistance(y, at::silu(gate.to(at::kFloat))), tolerance());
}

at::Tensor Rotated(const at::Tensor& x, const RopeTables& rope, int64_t sequence) {
  const auto halves = x.chunk(2, -1);
  const at::Tensor cos = rope.cos.slice(0, 0, sequence);
  const at::Tensor sin = rope.sin.slice(0, 0, sequence);
  return at::cat({halves[0] * cos - halves[1] * sin, halves[1] * cos + halves[0] * sin}, -1);
}

TEST_P(ModelOpsTest, RotaryAttentionWithGroupedHeads) {
  const int64_t sequence = 33;
  const AttentionShape shape{4, 2, 16};
  const RopeTables rope = MakeRopeTables(64, 16, 10000.0);
  const at::Tensor q = Leaf({2, sequence, 64});
  const at::Tensor k = Leaf({2, sequence, 32});
  const at::Tensor v = Leaf({2, sequence, 32});
  const at::Tensor pq = Wide(q);
  const at::Tensor pk = Wide(k);
  const at::Tensor pv = Wide(v);
  const auto heads = [&](const at::Tensor& x, int64_t n) { return x.view({2, sequence, n, 16}).transpose(1, 2); };
  const at::Tensor keys = Rotated(heads(pk, 2), rope, sequence).repeat_interleave(2, 1);
  const at::Tensor scores = at::matmul(Rotated(heads(pq, 4), rope, sequence), keys.transpose(-1, -2)) / 4.0;
  const at::Tensor mask = at::full({sequence, sequence}, -INFINITY).triu(1);
  const at::Tensor plain = at::matmul(at::softmax(scores + mask, -1), heads(pv, 2).repeat_interleave(2, 1))
                               .transpose(1, 2)
                               .reshape({2, sequence, 64});
  ExpectSame(RotaryAttention(q, k, v, rope, shape), plain, {{q, pq}, {k, pk}, {v, pv}});
}

TEST_P(ModelOpsTest, EmbeddingSumsItsGradientInFp32) {
  const at::Tensor ids = at::randint(0, 3, {4, 500}, at::kLong);
  const at::Tensor w = Leaf({3, 24});
  const at::Tensor pw = Wide(w);
  ExpectSame(Embedding(ids, w), at::embedding(pw, ids), {{w, pw}});
}

TEST_P(ModelOpsTest, HeadCrossEntropy) {
  const at::Tensor x = Leaf({40, 32});
  const at::Tensor w = Leaf({50, 32});
  const at::Tensor px = Wide(x);
  const at::Tensor pw = Wide(w);
  at::Tensor labels = at::randint(0, 50, {40}, at::kLong);
  labels.slice(0, 5, 9).fill_(-100);
  // The logits are rounded to the type, as PyTorch's head leaves them.
  const at::Tensor logits = at::matmul(px, pw.t());
  const at::Tensor rounded = logits + (logits.detach().to(type()).to(at::kFloat) - logits.detach());
  const at::Tensor plain = at::cross_entropy_loss(rounded, labels, {}, at::Reduction::Sum, -100);
  ExpectSame(HeadCrossEntropy(x, w, labels), plain, {{x, px}, {w, pw}});
}

TEST_P(ModelOpsTest, NonFiniteLogitsReachTheLoss) {
  const at::Tensor x = at::full({2, 16}, NAN, at::TensorOptions().dtype(type()));
  const at::Tensor w = at::ones({8, 16}).to(type());
  EXPECT_FALSE(HeadCrossEntropy(x, w, at::tensor({1, 2}, at::kLong)).isfinite().item<bool>());
}

INSTANTIATE_TEST_SUITE_P(Types, ModelOpsTest, testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& parameter) { return std::string(at::toString(parameter.param)); });

}  // namespace
}  // namespace mp::trainer
