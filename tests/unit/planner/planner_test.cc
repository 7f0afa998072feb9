#include <gtest/gtest.h>

#include "server/planner/llama.h"

namespace mp {
namespace {

TEST(PlannerTest, CountsTheParametersOfTheReleasedModels) {
  LlamaDimensions model;
  EXPECT_EQ(ParameterCount(model), 6738415616);
  model.hidden_size = 5120;
  model.intermediate_size = 13824;
  model.num_hidden_layers = 40;
  model.num_attention_heads = model.num_key_value_heads = 40;
  EXPECT_EQ(ParameterCount(model), 13015864320);
  model.hidden_size = 8192;
  model.intermediate_size = 28672;
  model.num_hidden_layers = 80;
  model.num_attention_heads = 64;
  model.num_key_value_heads = 8;
  EXPECT_EQ(ParameterCount(model), 68976648192);
}

TEST(PlannerTest, Fp8RunsOnP5AndIsEmulatedOnCpu) {
  EXPECT_FALSE(ClassRunsPolicy(v1::ResourceSpec::P4, v1::PrecisionSpec::FP8));
  EXPECT_TRUE(ClassRunsPolicy(v1::ResourceSpec::P5, v1::PrecisionSpec::FP8));
  EXPECT_TRUE(ClassRunsPolicy(v1::ResourceSpec::CPU, v1::PrecisionSpec::FP8));
  EXPECT_TRUE(ClassRunsPolicy(v1::ResourceSpec::P4, v1::PrecisionSpec::BF16));
}

TEST(PlannerTest, Fp8NeedsOneLinearOfMultiplesOfSixteen) {
  LlamaDimensions model;
  EXPECT_TRUE(HasFp8EligibleLinear(model));
  model.hidden_size = 4090;
  EXPECT_FALSE(HasFp8EligibleLinear(model));
}

}  // namespace
}  // namespace mp
