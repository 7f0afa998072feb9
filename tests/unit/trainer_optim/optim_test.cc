#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "worker/trainer/optim/gradients.h"
#include "worker/trainer/optim/optimizer.h"
#include "worker/trainer/optim/schedule.h"
#include "worker/trainer/sharding/single_rank.h"

namespace mp::trainer {
namespace {

TrainingConfig Training(TrainingConfig::LrSchedule schedule) {
  TrainingConfig training;
  training.learning_rate = 0.4;
  training.max_steps = 100;
  training.warmup_steps = 20;
  training.lr_schedule = schedule;
  return training;
}

TEST(ScheduleTest, GoesThroughThePointsOfTransformersSchedules) {
  const TrainingConfig linear = Training(TrainingConfig::LrSchedule::kLinear);
  EXPECT_DOUBLE_EQ(LearningRate(linear, 0), 0.0);
  EXPECT_DOUBLE_EQ(LearningRate(linear, 5), 0.1);
  EXPECT_DOUBLE_EQ(LearningRate(linear, 20), 0.4);
  EXPECT_DOUBLE_EQ(LearningRate(linear, 60), 0.2);
  EXPECT_DOUBLE_EQ(LearningRate(linear, 100), 0.0);
  const TrainingConfig cosine = Training(TrainingConfig::LrSchedule::kCosine);
  EXPECT_DOUBLE_EQ(LearningRate(cosine, 20), 0.4);
  EXPECT_NEAR(LearningRate(cosine, 40), 0.4 * 0.5 * (1 + std::cos(M_PI * 0.25)), 1e-15);
  EXPECT_NEAR(LearningRate(cosine, 60), 0.2, 1e-15);
  EXPECT_NEAR(LearningRate(cosine, 100), 0.0, 1e-15);
  const TrainingConfig constant = Training(TrainingConfig::LrSchedule::kConstant);
  EXPECT_DOUBLE_EQ(LearningRate(constant, 10), 0.2);
  EXPECT_DOUBLE_EQ(LearningRate(constant, 99), 0.4);
}

TEST(ScheduleTest, TheFloorHolds) {
  TrainingConfig cosine = Training(TrainingConfig::LrSchedule::kCosine);
  cosine.min_lr_ratio = 0.1;
  EXPECT_NEAR(LearningRate(cosine, 100), 0.04, 1e-15);
  EXPECT_NEAR(LearningRate(cosine, 60), 0.4 * 0.55, 1e-15);
  EXPECT_NEAR(LearningRate(cosine, 1000), 0.04, 1e-15);
}

TEST(ScheduleTest, TheFormForTensorsIsTheSame) {
  for (const auto schedule : {TrainingConfig::LrSchedule::kLinear, TrainingConfig::LrSchedule::kCosine,
                              TrainingConfig::LrSchedule::kConstant}) {
    for (const int64_t warmup : {0, 20}) {
      TrainingConfig training = Training(schedule);
      training.warmup_steps = warmup;
      training.min_lr_ratio = 0.1;
      for (int64_t applied = 0; applied <= 120; ++applied) {
        const at::Tensor rate = LearningRate(training, at::full({}, applied, at::kLong));
        EXPECT_NEAR(rate.item<double>(), LearningRate(training, applied), 1e-15) << applied;
      }
    }
  }
}

ShardView Shard(const at::Tensor& master, const at::Tensor& gradient, bool decay) {
  return {master.clone(), gradient.clone(), {{0, master.numel(), decay}}};
}

TEST(AdamWTest, IsTheFusedKernelOfPyTorch) {
  at::manual_seed(2);
  TrainingConfig training = Training(TrainingConfig::LrSchedule::kConstant);
  training.warmup_steps = 0;
  training.weight_decay = 0.1;
  training.learning_rate = 0.01;
  std::vector<ShardView> shards = {Shard(at::randn({1001}), at::zeros({1001}), true)};
  const auto adam = MakeOptimizer(training, shards);
  at::Tensor p = shards[0].master.clone();
  at::Tensor m = at::zeros_like(p);
  at::Tensor v = at::zeros_like(p);
  at::Tensor step = at::zeros({});
  for (int i = 0; i < 10; ++i) {
    const at::Tensor gradient = at::randn({1001});
    shards[0].gradient = gradient.clone();
    adam->Step(shards, {at::zeros({}), at::ones({}, at::kDouble), at::full({}, 0.5)});
    step.add_(1);
    at::_fused_adamw_({p}, {gradient * 0.5}, {m}, {v}, {}, {step}, training.learning_rate, training.adam_beta1,
                      training.adam_beta2, training.weight_decay, training.adam_epsilon, false, false);
    EXPECT_LE((shards[0].master - p).abs().max().item<double>(), 5e-7) << i;
  }
  EXPECT_TRUE(at::allclose(adam->state().at("exp_avg_sq")[0], v, 1e-5, 1e-9));
  EXPECT_EQ(adam->applied_steps().item<int64_t>(), 10);
}

TEST(AdamWTest, FoundInfChangesNothing) {
  const TrainingConfig training = Training(TrainingConfig::LrSchedule::kConstant);
  std::vector<ShardView> shards = {Shard(at::ones({8}), at::full({8}, INFINITY), true)};
  const auto adam = MakeOptimizer(training, shards);
  adam->Step(shards, {at::ones({}), at::ones({}, at::kDouble), at::ones({})});
  EXPECT_TRUE(at::equal(shards[0].master, at::ones({8})));
  EXPECT_EQ(adam->applied_steps().item<int64_t>(), 0);
  EXPECT_TRUE(at::equal(adam->state().at("exp_avg")[0], at::zeros({8})));
}

TEST(AdamWTest, DecayIsOnlyWhereItApplies) {
  TrainingConfig training = Training(TrainingConfig::LrSchedule::kConstant);
  training.warmup_steps = 0;
  training.weight_decay = 0.5;
  std::vector<ShardView> shards = {{at::ones({8}), at::zeros({8}), {{0, 3, true}, {4, 8, false}}}};
  const auto adam = MakeOptimizer(training, shards);
  adam->Step(shards, {at::zeros({}), at::ones({}, at::kDouble), at::ones({})});
  const auto* p = shards[0].master.const_data_ptr<float>();
  EXPECT_FLOAT_EQ(p[0], 1 - 0.4F * 0.5F);
  EXPECT_FLOAT_EQ(p[3], 1.0F);
  EXPECT_FLOAT_EQ(p[7], 1.0F);
}

// The plain formulas of torch.optim, tensor by tensor.
TEST(AdamTest, AddsTheDecayToTheGradient) {
  at::manual_seed(3);
  TrainingConfig training = Training(TrainingConfig::LrSchedule::kConstant);
  training.optim = TrainingConfig::Optimizer::kAdam;
  training.warmup_steps = 0;
  training.weight_decay = 0.1;
  training.learning_rate = 0.01;
  std::vector<ShardView> shards = {Shard(at::randn({257}), at::zeros({257}), true)};
  const auto adam = MakeOptimizer(training, shards);
  at::Tensor p = shards[0].master.to(at::kDouble);
  at::Tensor m = at::zeros_like(p);
  at::Tensor v = at::zeros_like(p);
  for (int t = 1; t <= 10; ++t) {
    shards[0].gradient = at::randn({257});
    const at::Tensor g = shards[0].gradient.to(at::kDouble) * 2.0 + 0.1 * p;
    adam->Step(shards, {at::zeros({}), at::ones({}, at::kDouble), at::full({}, 2.0)});
    m = 0.9 * m + 0.1 * g;
    v = 0.999 * v + 0.001 * g * g;
    p = p - 0.01 * (m / (1 - std::pow(0.9, t))) / ((v / (1 - std::pow(0.999, t))).sqrt() + 1e-8);
    EXPECT_LE((shards[0].master - p).abs().max().item<double>(), 1e-6) << t;
  }
}

TEST(SgdTest, IsTorchsWithAndWithoutMomentum) {
  for (const double momentum : {0.0, 0.9}) {
    at::manual_seed(4);
    TrainingConfig training = Training(TrainingConfig::LrSchedule::kConstant);
    training.optim = TrainingConfig::Optimizer::kSgd;
    training.warmup_steps = 0;
    training.weight_decay = 0.1;
    training.momentum = momentum;
    training.learning_rate = 0.05;
    std::vector<ShardView> shards = {Shard(at::randn({257}), at::zeros({257}), true)};
    const auto sgd = MakeOptimizer(training, shards);
    EXPECT_EQ(sgd->state().size(), momentum > 0 ? 1U : 0U);
    at::Tensor p = shards[0].master.to(at::kDouble);
    at::Tensor b = at::zeros_like(p);
    for (int i = 0; i < 10; ++i) {
      shards[0].gradient = at::randn({257});
      const at::Tensor g = shards[0].gradient.to(at::kDouble) * 0.5 + 0.1 * p;
      sgd->Step(shards, {at::zeros({}), at::ones({}, at::kDouble), at::full({}, 0.5)});
      b = momentum * b + g;
      p = p - 0.05 * b;
      EXPECT_LE((shards[0].master - p).abs().max().item<double>(), 1e-6) << i;
    }
    shards[0].gradient = at::full({257}, INFINITY);
    const at::Tensor before = shards[0].master.clone();
    sgd->Step(shards, {at::ones({}), at::ones({}, at::kDouble), at::ones({})});
    EXPECT_TRUE(at::equal(shards[0].master, before));
    EXPECT_EQ(sgd->applied_steps().item<int64_t>(), 10);
  }
}

TEST(GradientsTest, NormIsUnscaledAndClippingFollowsIt) {
  const auto collectives = MakeSingleRankCollectives();
  const std::vector<ShardView> shards = {Shard(at::zeros({2}), at::tensor({30.0F, 0.0F}), true),
                                         Shard(at::zeros({1}), at::tensor({40.0F}), true)};
  const GradientSummary clipped = SummariseGradients(shards, at::full({}, 10.0), 1.0, collectives.get());
  EXPECT_DOUBLE_EQ(clipped.norm.item<double>(), 5.0);
  EXPECT_EQ(clipped.found_inf.item<float>(), 0.0F);
  EXPECT_NEAR(clipped.factor.item<float>(), 0.1 / (5.0 + 1e-6), 1e-8);
  EXPECT_FLOAT_EQ(SummariseGradients(shards, at::full({}, 10.0), 9.0, collectives.get()).factor.item<float>(), 0.1F);
  EXPECT_FLOAT_EQ(SummariseGradients(shards, at::full({}, 10.0), 0.0, collectives.get()).factor.item<float>(), 0.1F);
}

TEST(GradientsTest, InfinityAndNanAreFoundAndLargeFiniteGradientsAreNot) {
  const auto collectives = MakeSingleRankCollectives();
  const auto found = [&](float value) {
    return SummariseGradients({Shard(at::zeros({3}), at::tensor({1.0F, value, 2.0F}), true)}, at::ones({}), 1.0,
                              collectives.get())
        .found_inf.item<float>();
  };
  EXPECT_EQ(found(INFINITY), 1.0F);
  EXPECT_EQ(found(NAN), 1.0F);
  EXPECT_EQ(found(3e38F), 0.0F);
}

}  // namespace
}  // namespace mp::trainer
