// Our casts against ATen's float8 types, which round alike but do not saturate: they are clamped first.
#include "worker/trainer/precision/fp8/formats.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "worker/trainer/precision/fp8/aten_cast.h"

namespace mp::trainer::fp8 {
namespace {

at::Tensor AllBFloat16() {
  at::Tensor bits = at::arange(0, 65536, at::kInt).to(at::kShort);
  return bits.view(at::kBFloat16);
}

class Fp8FormatsTest : public testing::TestWithParam<Format> {};

TEST_P(Fp8FormatsTest, EveryBFloat16ValueUnderManyScalesCastsAsATenDoes) {
  const at::Tensor all = AllBFloat16();
  const at::Tensor x = all.masked_select(all.to(at::kFloat).isfinite()).contiguous();
  for (const float scale : {1.0F, 0.37F, 3.0F, 1e-6F, 1024.0F, 7e7F}) {
    const at::Tensor scaled = x.to(at::kFloat) * scale;
    const float most = MaxValue(GetParam());
    const at::Tensor expected = scaled.clamp(-most, most).to(AtenType(GetParam()));
    const Quantised ours = Quantise(x, scale, GetParam());
    EXPECT_TRUE(at::equal(ours.codes, expected.view(at::kByte))) << scale;
    EXPECT_TRUE(at::equal(ours.values.to(at::kFloat), expected.to(at::kFloat))) << scale;
    EXPECT_EQ(ours.statistics.amax, x.to(at::kFloat).abs().max().item<float>());
    EXPECT_EQ(ours.statistics.overflows, (scaled.abs() > most).sum().item<int64_t>());
    EXPECT_EQ(ours.statistics.underflows, ((x != 0) & (expected.to(at::kFloat) == 0)).sum().item<int64_t>());
  }
}

TEST_P(Fp8FormatsTest, RoundsHalfwayCasesToEvenFromFp32) {
  // Each representable value, and the points halfway to its neighbours, one bit to either side.
  const at::Tensor values = Decode(at::arange(0, 256, at::kInt).to(at::kByte), GetParam()).to(at::kFloat);
  const at::Tensor finite =
      std::get<0>(values.masked_select(values.isfinite() & (values.abs() <= MaxValue(GetParam()))).sort());
  const at::Tensor middle = (finite.slice(0, 1) + finite.slice(0, 0, -1)) / 2;
  const at::Tensor up = at::nextafter(middle, at::full_like(middle, INFINITY));
  const at::Tensor down = at::nextafter(middle, at::full_like(middle, -INFINITY));
  const at::Tensor x = at::cat({finite, middle, up, down});
  EXPECT_TRUE(at::equal(Quantise(x, 1.0F, GetParam()).codes, x.to(AtenType(GetParam())).view(at::kByte)));
}

TEST_P(Fp8FormatsTest, InfinitySaturatesAndNanStays) {
  const at::Tensor x = at::tensor({INFINITY, -INFINITY, NAN, 1.0F});
  const Quantised ours = Quantise(x, 1.0F, GetParam());
  const at::Tensor values = ours.values.to(at::kFloat);
  EXPECT_EQ(values[0].item<float>(), MaxValue(GetParam()));
  EXPECT_EQ(values[1].item<float>(), -MaxValue(GetParam()));
  EXPECT_TRUE(std::isnan(values[2].item<float>()));
  EXPECT_TRUE(std::isnan(Decode(ours.codes, GetParam())[2].item<float>()));
  EXPECT_EQ(ours.statistics.amax, INFINITY);
  EXPECT_EQ(ours.statistics.overflows, 2);
}

TEST_P(Fp8FormatsTest, DecodeGivesBackWhatQuantiseMade) {
  const at::Tensor x = at::randn({3000}) * 10;
  const Quantised ours = Quantise(x, 2.0F, GetParam());
  EXPECT_TRUE(at::equal(Decode(ours.codes, GetParam()), ours.values));
}

TEST_P(Fp8FormatsTest, NanDoesNotEnterTheAmax) {
  EXPECT_EQ(Quantise(at::tensor({NAN, -3.0F, 2.0F}), 1.0F, GetParam()).statistics.amax, 3.0F);
  EXPECT_EQ(Quantise(at::zeros({17}), 1.0F, GetParam()).statistics.amax, 0.0F);
}

TEST_P(Fp8FormatsTest, TheCastInAtenOperationsIsTheSame) {
  at::manual_seed(5);
  const at::Tensor special = at::tensor({INFINITY, -INFINITY, NAN, 0.0F, -0.0F, 1e-30F, -1e-30F, 1e30F});
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const float scale : {1.0F, 0.01F, 300.0F}) {
      const at::Tensor x = at::cat({at::randn({5000}) * 3, special}).to(type);
      const Quantised loops = Quantise(x, scale, GetParam());
      const AtenCast aten = CastByAten(x, at::full({1}, scale), GetParam());
      EXPECT_TRUE(at::equal(aten.codes.view(at::kByte).bitwise_and(0x7F), loops.codes.bitwise_and(0x7F)));
      EXPECT_EQ(aten.amax.item<float>(), loops.statistics.amax);
      EXPECT_EQ(aten.underflows.item<int64_t>(), loops.statistics.underflows);
      EXPECT_EQ(aten.overflows.item<int64_t>(), loops.statistics.overflows);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Fp8FormatsTest, testing::Values(Format::kE4M3, Format::kE5M2),
                         [](const auto& parameter) { return parameter.param == Format::kE4M3 ? "E4M3" : "E5M2"; });

}  // namespace
}  // namespace mp::trainer::fp8
