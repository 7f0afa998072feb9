// The FP8 linear layer against the same products of dequantised operands in fp64.
#include "worker/trainer/precision/fp8/linear.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

namespace mp::trainer::fp8 {
namespace {

at::Tensor Dequantised(const at::Tensor& x, float scale, Format format) {
  const float most = MaxValue(format);
  const at::ScalarType type = format == Format::kE4M3 ? at::kFloat8_e4m3fn : at::kFloat8_e5m2;
  return (x.to(at::kFloat) * scale).clamp(-most, most).to(type).to(at::kDouble) / scale;
}

double Distance(const at::Tensor& a, const at::Tensor& b) {
  return ((a.to(at::kDouble) - b).norm() / b.norm()).item<double>();
}

class Fp8LinearTest : public testing::TestWithParam<at::ScalarType> {};

TEST_P(Fp8LinearTest, ForwardAndBothGradientsAreProductsOfTheQuantisedOperands) {
  at::manual_seed(3);
  const double tolerance = GetParam() == at::kHalf ? 1e-3 : 5e-3;  // one rounding of the result
  CastMode mode;
  LinearState state("layer", Format::kE4M3, Format::kE5M2, &mode);
  state.input().scale.fill_(50.0);
  state.weight().scale.fill_(300.0);
  state.grad_output().scale.fill_(1000.0);
  const at::Tensor x = at::randn({2, 16, 48}).to(GetParam()).set_requires_grad(true);
  const at::Tensor w = at::randn({32, 48}).to(GetParam()).set_requires_grad(true);
  const at::Tensor bias = at::randn({32}).to(GetParam()).set_requires_grad(true);
  const at::Tensor qx = Dequantised(x.detach().reshape({32, 48}), 50.0F, Format::kE4M3);
  const at::Tensor qw = Dequantised(w.detach(), 300.0F, Format::kE4M3);

  const at::Tensor y = Fp8Linear(x, w, bias, &state);
  EXPECT_LE(Distance(y.detach().reshape({32, 32}), at::mm(qx, qw.t()) + bias.detach().to(at::kDouble)), tolerance);
  const at::Tensor dy = at::randn({2, 16, 32}).to(GetParam());
  torch::autograd::backward({y}, {dy});
  const at::Tensor qdy = Dequantised(dy.reshape({32, 32}), 1000.0F, Format::kE5M2);
  EXPECT_LE(Distance(x.grad().reshape({32, 48}), at::mm(qdy, qw)), tolerance);
  EXPECT_LE(Distance(w.grad(), at::mm(qdy.t(), qx)), tolerance);
  EXPECT_LE(Distance(bias.grad(), dy.reshape({32, 32}).to(at::kDouble).sum(0)), tolerance);
  EXPECT_EQ(state.input().amax.item<float>(), x.abs().max().to(at::kFloat).item<float>());
  EXPECT_EQ(state.grad_output().amax.item<float>(), dy.abs().max().to(at::kFloat).item<float>());
}

INSTANTIATE_TEST_SUITE_P(Types, Fp8LinearTest, testing::Values(at::kBFloat16, at::kHalf),
                         [](const auto& parameter) { return std::string(at::toString(parameter.param)); });

TEST(Fp8EligibilityTest, AllThreeDimsMustBeMultiplesOfSixteen) {
  EXPECT_EQ(WhyNotEligible(32, 48, 64), "");
  EXPECT_NE(WhyNotEligible(33, 48, 64).find("33"), std::string::npos);
  EXPECT_NE(WhyNotEligible(32, 50, 64).find("50"), std::string::npos);
  EXPECT_NE(WhyNotEligible(32, 48, 65).find("65"), std::string::npos);
}

}  // namespace
}  // namespace mp::trainer::fp8
