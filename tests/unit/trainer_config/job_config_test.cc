#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/mutation.h"
#include "worker/trainer/config/error.h"
#include "worker/trainer/config/job.h"

namespace mp::trainer {
namespace {

using testing::HasSubstr;

JsonValue Minimal() {
  return ParseJson(R"({"name": "j", "model": {"config": {"model_type": "llama"}}, "data": {"train": [{"path": "t"}]},
                       "training": {"max_steps": 10, "output_dir": "o"}})");
}

JobConfig WithPrecision(const std::string& precision) {
  JsonValue job = Minimal();
  job.Set("precision", ParseJson(precision));
  return ParseJob(job.ToString());
}

std::string ErrorOf(const std::string& json) {
  try {
    ParseJob(json);
  } catch (const TrainerError& error) {
    EXPECT_EQ(error.cause(), EndCause::kBadConfig);
    return error.what();
  }
  return "";
}

TEST(JobConfigTest, DefaultsFollowThePolicy) {
  EXPECT_EQ(ParseJob(Minimal().ToString()).precision.param_dtype, c10::ScalarType::Float);
  const JobConfig fp8 = WithPrecision(R"({"policy": "FP8"})");
  EXPECT_EQ(fp8.precision.param_dtype, c10::ScalarType::BFloat16);
  EXPECT_EQ(fp8.precision.reduce_dtype, c10::ScalarType::BFloat16);
  EXPECT_EQ(fp8.precision.fp8.amax_history_len, 32);
  EXPECT_EQ(fp8.precision.loss_scale.mode, LossScaleConfig::Mode::kNone);
  const JobConfig fp16 = WithPrecision(R"({"policy": "FP16"})");
  EXPECT_EQ(fp16.precision.loss_scale.mode, LossScaleConfig::Mode::kDynamic);
  EXPECT_EQ(fp16.precision.loss_scale.init_scale, 65536);
}

TEST(JobConfigTest, TakesCamelCaseAndNumbersAsStrings) {
  const JobConfig job =
      ParseJob(R"({"model": {"configPath": "m"}, "data": {"train": [{"path": "t"}], "sequenceLength": 64},
                                     "training": {"maxSteps": "12", "outputDir": "o", "learningRate": 1e-3}})");
  EXPECT_EQ(job.training.max_steps, 12);
  EXPECT_EQ(job.data.sequence_length, 64);
  EXPECT_EQ(job.model.config_path, "m");
}

TEST(JobConfigTest, NamesEveryViolationAtOnce) {
  const std::string error = ErrorOf(
      R"({"nonsense": 1, "model": {}, "precision": {"policy": "FP9", "param_dtype": "FP16", "fp8": {"margin": 99}},
    "data": {"train": [{"path": 3, "format": "PDF"}]}, "training": {"max_steps": 0, "warmup_steps": 5, "eval_strategy": "STEPS"}})");
  for (const char* part : {"nonsense: unknown field", "model.config:", "precision.policy:", "precision.param_dtype:",
                           "precision.fp8.margin:", "precision.fp8:", "data.train[0].path:", "data.train[0].format:",
                           "training.max_steps:", "training.output_dir:", "training.eval_steps:", "data.eval:"}) {
    EXPECT_THAT(error, HasSubstr(part));
  }
}

TEST(JobConfigTest, LossScaleFieldsGoWithTheirMode) {
  EXPECT_EQ(
      WithPrecision(R"({"policy": "BF16", "loss_scale": {"mode": "STATIC", "scale": 128}})").precision.loss_scale.scale,
      128);
  JsonValue job = Minimal();
  job.Set("precision", ParseJson(R"({"policy": "FP16", "loss_scale": {"mode": "STATIC", "init_scale": 2}})"));
  const std::string error = ErrorOf(job.ToString());
  EXPECT_THAT(error, HasSubstr("precision.loss_scale.scale: is required"));
  EXPECT_THAT(error, HasSubstr("precision.loss_scale.init_scale: is read with mode DYNAMIC"));
}

TEST(JobConfigTest, TheResolvedFormReadsBackTheSame) {
  for (const char* policy : {"FP32", "BF16", "FP16", "FP8"}) {
    const std::string resolved = JobToJson(WithPrecision(std::string(R"({"policy": ")") + policy + "\"}"));
    EXPECT_EQ(JobToJson(ParseJob(resolved)), resolved);
  }
}

TEST(JobConfigTest, TheNodeClassSaysTheDevice) {
  EXPECT_EQ(ParseJob(Minimal().ToString()).device, JobConfig::Device::kCPU);
  JsonValue job = Minimal();
  job.Set("resources", ParseJson(R"({"nodes": 2, "node_class": "P5"})"));
  EXPECT_EQ(ParseJob(job.ToString()).device, JobConfig::Device::kCUDA);
  job.Set("resources", ParseJson(R"({"node_class": "P6"})"));
  EXPECT_THAT(ErrorOf(job.ToString()), HasSubstr("resources.node_class"));
}

TEST(JobConfigTest, RefusesWhatIsNotAnObject) {
  EXPECT_NE(ErrorOf("[]"), "");
  EXPECT_NE(ErrorOf("{"), "");
  EXPECT_NE(ErrorOf("null"), "");
}

TEST(JobConfigTest, ADamagedFileIsRefusedOrReadsBack) {
  JsonValue job = Minimal();
  job.Set("precision", ParseJson(R"({"policy": "FP8", "loss_scale": {"mode": "NONE"}, "fp8": {"margin": 0}})"));
  const std::string good = JobToJson(ParseJob(job.ToString()));
  int refused = 0;
  for (unsigned seed = 0; seed < 5000; ++seed) {
    const std::string text = Mutator(seed).Damage(good);
    try {
      const std::string resolved = JobToJson(ParseJob(text));
      EXPECT_EQ(JobToJson(ParseJob(resolved)), resolved) << "seed " << seed << ": " << text;
    } catch (const TrainerError& error) {
      EXPECT_EQ(error.cause(), EndCause::kBadConfig) << "seed " << seed << ": " << text;
      ++refused;
    }
  }
  EXPECT_GT(refused, 2500);
}

}  // namespace
}  // namespace mp::trainer
