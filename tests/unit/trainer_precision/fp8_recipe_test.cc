// The recipe against the formulas worked by hand, and the context's order of events.
#include "worker/trainer/precision/fp8/recipe.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "worker/trainer/config/error.h"
#include "worker/trainer/precision/fp8/context.h"
#include "worker/trainer/precision/fp8/linear.h"

namespace mp::trainer::fp8 {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// A single tensor fed with one amax a step.
struct OneTensor {
  explicit OneTensor(Fp8Config config_in)
      : config(config_in), history(static_cast<size_t>(config.amax_history_len), 0.0F) {}
  float Step(float amax) {
    history[0] = amax;
    UpdateScales(config, 448.0F, 1, history.data(), &scale);
    UpdateScales(config, 448.0F, at::full({1}, amax), history_tensor, scale_tensor);
    EXPECT_EQ(scale_tensor.item<float>(), scale);
    for (size_t i = 0; i < history.size(); ++i) {
      EXPECT_EQ(history_tensor[static_cast<int64_t>(i)].item<float>(), history[i]) << i;
    }
    return scale;
  }
  Fp8Config config;
  std::vector<float> history;
  float scale = 1.0F;
  // The same, by the form for tensors.
  at::Tensor history_tensor = at::zeros({config.amax_history_len, 1});
  at::Tensor scale_tensor = at::ones({1});
};

Fp8Config Config(int length, Fp8Config::AmaxComputeAlgo algo = Fp8Config::AmaxComputeAlgo::kMax, int margin = 0) {
  Fp8Config config;
  config.amax_history_len = length;
  config.amax_compute_algo = algo;
  config.margin = margin;
  return config;
}

TEST(Fp8RecipeTest, MaxHoldsThePeakForTheLengthOfTheHistory) {
  OneTensor tensor(Config(4));
  EXPECT_EQ(tensor.Step(2.0F), 224.0F);
  EXPECT_EQ(tensor.Step(8.0F), 56.0F);
  EXPECT_EQ(tensor.Step(1.0F), 56.0F);
  EXPECT_EQ(tensor.Step(1.0F), 56.0F);
  EXPECT_EQ(tensor.Step(1.0F), 56.0F);
  // A roll by -1 and a zeroed slot 0 leave length - 1 old values beside the newest.
  EXPECT_EQ(tensor.Step(1.0F), 448.0F);
}

TEST(Fp8RecipeTest, MostRecentFollowsAtOnce) {
  OneTensor tensor(Config(4, Fp8Config::AmaxComputeAlgo::kMostRecent));
  EXPECT_EQ(tensor.Step(8.0F), 56.0F);
  EXPECT_EQ(tensor.Step(1.0F), 448.0F);
}

TEST(Fp8RecipeTest, MarginDividesByPowersOfTwo) {
  OneTensor tensor(Config(4, Fp8Config::AmaxComputeAlgo::kMax, 3));
  EXPECT_EQ(tensor.Step(1.0F), 56.0F);
}

TEST(Fp8RecipeTest, ZeroLeavesScaleAndHistoryAlone) {
  OneTensor tensor(Config(3));
  tensor.Step(2.0F);
  const std::vector<float> before = tensor.history;
  EXPECT_EQ(tensor.Step(0.0F), 224.0F);
  EXPECT_EQ(tensor.history, before);
}

TEST(Fp8RecipeTest, InfinityFreezesTheScaleUntilItAgesOut) {
  OneTensor tensor(Config(3));
  EXPECT_EQ(tensor.Step(2.0F), 224.0F);
  EXPECT_EQ(tensor.Step(kInf), 224.0F);
  EXPECT_EQ(tensor.Step(1.0F), 224.0F);
  EXPECT_EQ(tensor.Step(1.0F), 224.0F);
  EXPECT_EQ(tensor.Step(1.0F), 448.0F);
}

TEST(Fp8RecipeTest, AnOverflowingScaleIsTheLargestFloat) {
  OneTensor tensor(Config(2));
  EXPECT_EQ(tensor.Step(1e-38F), std::numeric_limits<float>::max());
}

TEST(Fp8RecipeTest, HistoryOfOne) {
  OneTensor tensor(Config(1));
  EXPECT_EQ(tensor.Step(2.0F), 224.0F);
  EXPECT_EQ(tensor.Step(4.0F), 112.0F);
}

TEST(Fp8ContextTest, ScalesAreThoseOfTheReducedAmaxAndHoldFromTheNextCast) {
  Context context(Config(32));
  LinearState* linear = context.AddLinear("layer");
  const at::Tensor x = at::full({16, 16}, 2.0);
  context.BeginStep();
  linear->Cast(x, &linear->input(), Format::kE4M3);
  EXPECT_EQ(linear->input().scale.item<float>(), 1.0F);
  context.UpdateForward([](at::Tensor& amaxes) {
    ASSERT_EQ(amaxes.numel(), 2);
    amaxes[0].fill_(4.0);  // another rank saw more
  });
  EXPECT_EQ(linear->input().scale.item<float>(), 112.0F);
  EXPECT_EQ(linear->weight().scale.item<float>(), 1.0F);               // was not cast
  EXPECT_EQ(context.Statistics(context.TakeSnapshot())[0].amax, 2.0);  // this rank's own
  EXPECT_EQ(context.Statistics(context.TakeSnapshot())[0].scale, 1.0);
}

TEST(Fp8ContextTest, EvaluationLeavesHistoryAndStatisticsAlone) {
  Context context(Config(4));
  LinearState* linear = context.AddLinear("layer");
  context.BeginStep();
  context.set_training(false);
  linear->Cast(at::full({16, 16}, 9.0), &linear->input(), Format::kE4M3);
  EXPECT_EQ(linear->input().amax.item<float>(), 0.0F);
  EXPECT_EQ(context.Statistics(context.TakeSnapshot())[0].amax, 0.0);
}

TEST(Fp8ContextTest, MicroBatchesAccumulateTheAmax) {
  Context context(Config(4));
  LinearState* linear = context.AddLinear("layer");
  context.BeginStep();
  for (const double value : {1.0, 7.0, 3.0}) linear->Cast(at::full({16, 16}, value), &linear->input(), Format::kE4M3);
  context.UpdateForward(nullptr);
  EXPECT_EQ(linear->input().scale.item<float>(), 64.0F);
}

TEST(Fp8ContextTest, StateSurvivesARoundTripAndRefusesAnotherShape) {
  Context context(Config(4));
  LinearState* linear = context.AddLinear("a");
  context.BeginStep();
  linear->Cast(at::full({16, 16}, 2.0), &linear->input(), Format::kE4M3);
  context.UpdateForward(nullptr);
  linear->Cast(at::full({16, 16}, 3.0), &linear->input(), Format::kE4M3);
  const auto state = context.StateDict();

  Context copy(Config(4));
  LinearState* loaded = copy.AddLinear("a");
  copy.LoadStateDict(state);
  EXPECT_EQ(loaded->input().scale.item<float>(), 224.0F);
  EXPECT_EQ(loaded->input().amax.item<float>(), 3.0F);
  EXPECT_TRUE(at::equal(copy.StateDict().at("fp8.forward.amax_history"), state.at("fp8.forward.amax_history")));

  Context other(Config(8));
  other.AddLinear("a");
  EXPECT_THROW(other.LoadStateDict(state), TrainerError);
  EXPECT_THROW(other.LoadStateDict({}), TrainerError);
}

}  // namespace
}  // namespace mp::trainer::fp8
