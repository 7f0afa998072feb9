// Conversions, products and loss scaling.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "worker/trainer/precision/convert.h"
#include "worker/trainer/precision/gemm.h"
#include "worker/trainer/precision/loss_scale.h"
#include "worker/trainer/precision/vectorize.h"

namespace mp::trainer {
namespace {

bool SameOrBothNan(const at::Tensor& a, const at::Tensor& b) {
  return ((a == b) | (a.isnan() & b.isnan())).all().item<bool>();
}

TEST(ConvertTest, EveryHalfPatternWidensAsATenDoes) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const at::Tensor all = at::arange(0, 65536, at::kInt).to(at::kShort).view(type);
    EXPECT_TRUE(SameOrBothNan(ToFloatTensor(all), all.to(at::kFloat)));
  }
}

TEST(ConvertTest, NarrowingRoundsAsATenDoes) {
  const at::Tensor x =
      at::cat({at::randn({4099}), at::randn({500}) * 1e-7, at::randn({500}) * 7e4,
               at::tensor({INFINITY, -INFINITY, NAN, 0.0F, -0.0F, 65519.0F, 65520.0F, 3.4e38F, 6e-8F, 2.9e-8F})});
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    EXPECT_TRUE(SameOrBothNan(FromFloatTensor(x, 1.0F, type).to(at::kFloat), x.to(type).to(at::kFloat)));
  }
}

TEST(FastExpTest, IsWithinThreeTenMillionths) {
  for (float x = -87.0F; x < 88.0F; x += 0.0137F) {
    EXPECT_NEAR(FastExp(x) / std::exp(static_cast<double>(x)), 1.0, 3e-7) << x;
  }
  EXPECT_EQ(FastExp(-200.0F), 0.0F);
  EXPECT_EQ(FastExp(0.0F), 1.0F);
}

TEST(MatMulTest, EveryTranspositionAgreesWithFp64) {
  at::manual_seed(1);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const bool ta : {false, true}) {
      for (const bool tb : {false, true}) {
        const at::Tensor a = at::randn({37, 53}).to(type);
        const at::Tensor b = at::randn({53, 29}).to(type);
        const at::Tensor expected = at::mm(a.to(at::kDouble), b.to(at::kDouble)) * 0.5;
        const at::Tensor ours =
            MatMul(ta ? a.t().contiguous() : a, ta, tb ? b.t().contiguous() : b, tb, 0.5F, at::kFloat);
        EXPECT_LE(((ours.to(at::kDouble) - expected).norm() / expected.norm()).item<double>(), 1e-6)
            << type << ta << tb;
      }
    }
  }
}

TEST(MatMulTest, RefusesShapesThatDoNotGoTogether) {
  EXPECT_THROW(MatMul(at::zeros({2, 3}), false, at::zeros({4, 5}), false, 1.0F, at::kFloat), c10::Error);
}

LossScaleConfig Dynamic(double init, int64_t interval) {
  LossScaleConfig config;
  config.mode = LossScaleConfig::Mode::kDynamic;
  config.init_scale = init;
  config.growth_interval = interval;
  return config;
}

double After(LossScaler* scaler, bool found_inf) {
  scaler->Update(at::full({}, found_inf ? 1.0 : 0.0));
  return scaler->scale().item<double>();
}

TEST(LossScalerTest, BacksOffAtOnceAndGrowsAfterTheInterval) {
  LossScaler scaler(Dynamic(1024, 3));
  EXPECT_EQ(After(&scaler, false), 1024);
  EXPECT_EQ(After(&scaler, true), 512);
  EXPECT_EQ(After(&scaler, false), 512);
  EXPECT_EQ(After(&scaler, false), 512);
  EXPECT_EQ(After(&scaler, false), 1024);
  EXPECT_EQ(After(&scaler, false), 1024);
}

TEST(LossScalerTest, NeverGrowsToInfinity) {
  LossScaler scaler(Dynamic(3e38, 1));
  EXPECT_EQ(After(&scaler, false), static_cast<double>(3e38F));
}

TEST(LossScalerTest, StaticAndNoneStayAsTheyAre) {
  LossScaleConfig config;
  config.mode = LossScaleConfig::Mode::kStatic;
  config.scale = 256;
  LossScaler scaler(config);
  EXPECT_EQ(After(&scaler, true), 256);
  EXPECT_TRUE(scaler.skips());
  LossScaler none{LossScaleConfig{}};
  EXPECT_EQ(After(&none, true), 1);
  EXPECT_FALSE(none.skips());
}

TEST(LossScalerTest, StateSurvives) {
  LossScaler scaler(Dynamic(1024, 3));
  After(&scaler, false);
  After(&scaler, false);
  LossScaler copy(Dynamic(65536, 3));
  copy.LoadState(ParseJson(scaler.State().ToString()));
  EXPECT_EQ(After(&copy, false), 2048);
}

}  // namespace
}  // namespace mp::trainer
