// Initial weights element by element, and a model far larger than this machine.
#include "worker/trainer/sharding/initialise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "tests/unit/trainer_sharding/bystander.h"
#include "worker/trainer/model/registry.h"
#include "worker/trainer/sharding/sharded_model.h"

namespace mp::trainer {
namespace {

std::vector<float> Normal(const std::string& name, int64_t begin, int64_t count, int64_t seed = 5) {
  std::vector<float> values(static_cast<size_t>(count));
  FillNormal(seed, name, 2.0, begin, count, values.data());
  return values;
}

TEST(InitialiseTest, APartIsThatPartOfTheWhole) {
  const std::vector<float> whole = Normal("w", 0, 1000);
  for (const int64_t begin : {0, 1, 2, 3, 4, 501, 999}) {
    for (const int64_t count : {1, 2, 5, 400}) {
      if (begin + count > 1000) continue;
      const std::vector<float> part = Normal("w", begin, count);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + begin)) << begin << " " << count;
    }
  }
  EXPECT_NE(whole, Normal("v", 0, 1000));
  EXPECT_NE(whole, Normal("w", 0, 1000, 6));
}

TEST(InitialiseTest, MomentsAndTailsAreThoseOfANormalDistribution) {
  const int64_t count = 200000;
  const std::vector<float> values = Normal("w", 0, count);
  double sum = 0;
  double squares = 0;
  double fourth = 0;
  int64_t beyond_three_sigma = 0;
  for (const float value : values) {
    const double z = static_cast<double>(value) / 2.0;
    sum += z;
    squares += z * z;
    fourth += z * z * z * z;
    if (std::abs(z) > 3.0) ++beyond_three_sigma;
  }
  const auto n = static_cast<double>(count);
  EXPECT_NEAR(sum / n, 0, 5 / std::sqrt(n));
  EXPECT_NEAR(squares / n, 1, 5 * std::sqrt(2 / n));
  EXPECT_NEAR(fourth / n, 3, 5 * std::sqrt(96 / n));
  EXPECT_NEAR(static_cast<double>(beyond_three_sigma) / n, 0.0027, 0.0006);
}

// VmHWM, in bytes.
int64_t PeakMemory() {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  }
  return 0;
}

TEST(InitialiseTest, SeventyBillionParametersTakeTheMemoryOfAShard) {
  ModelConfig config;
  config.hf_config = ParseJson(R"({"model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672,
    "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 4096})");
  const auto model = MakeModel(config, PrecisionConfig{}, {}, 4096, nullptr);
  constexpr int kRanks = 8192;
  Bystander world(17, kRanks);
  const ShardingMesh mesh(ShardingConfig{}, &world);
  const int64_t before = PeakMemory();
  const ShardedModel sharded(model.get(), {{}, {}, 1, 3}, &mesh);
  EXPECT_GT(sharded.parameter_count(), int64_t{68'000'000'000});
  const int64_t shard = sharded.parameter_count() / kRanks * static_cast<int64_t>(sizeof(float));
  EXPECT_LT(PeakMemory() - before, 2 * shard + (int64_t{16} << 20));
}

}  // namespace
}  // namespace mp::trainer
