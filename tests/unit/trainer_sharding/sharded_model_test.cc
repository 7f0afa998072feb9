// The engine on one rank with a model of two stages whose gradients are known, and its initialisation in other worlds.
#include "worker/trainer/sharding/sharded_model.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "tests/unit/trainer_sharding/bystander.h"
#include "worker/trainer/sharding/single_rank.h"

namespace mp::trainer {
namespace {

// x -> x * w, and the last one sums.
class ScaleStage : public Stage {
 public:
  ScaleStage(std::string name, bool first, bool last) : name_(std::move(name)), first_(first), last_(last) {
    specs_ = {{name_ + ".w", {5, 7}, ParameterSpec::Init::kNormal, 1.0, true},
              {name_ + ".b", {7}, ParameterSpec::Init::kOnes, 0, false}};
  }
  const std::string& name() const override { return name_; }
  const std::vector<ParameterSpec>& parameters() const override { return specs_; }
  at::Tensor Forward(const at::Tensor& x, const ParameterList& parameters, const Batch& batch) override {
    const at::Tensor in = first_ ? batch.input_ids.to(parameters[0].scalar_type()) : x;
    const at::Tensor out = in * parameters[0] + parameters[1];
    return last_ ? out.sum().to(at::kFloat) : out;
  }

 private:
  std::string name_;
  std::vector<ParameterSpec> specs_;
  bool first_;
  bool last_;
};

class ScaleModel : public Model {
 public:
  ScaleModel() {
    stages_.push_back(std::make_unique<ScaleStage>("s0", true, false));
    stages_.push_back(std::make_unique<ScaleStage>("s1", false, false));
    stages_.push_back(std::make_unique<ScaleStage>("s2", false, true));
  }
  const std::vector<std::unique_ptr<Stage>>& stages() const override { return stages_; }
  std::vector<LinearPlan> linear_plan() const override { return {}; }
  int64_t vocab_size() const override { return 1; }
  int64_t max_position_embeddings() const override { return 1; }
  at::Tensor Logits(const at::Tensor& x, const ParameterList& /*parameters*/) override { return x; }

 private:
  std::vector<std::unique_ptr<Stage>> stages_;
};

std::map<std::string, at::Tensor> Weights(int world, int64_t seed) {
  std::map<std::string, at::Tensor> whole;
  for (int rank = 0; rank < world; ++rank) {
    ScaleModel model;
    Bystander collectives(rank, world);
    const ShardingMesh mesh(ShardingConfig{}, &collectives);
    ShardedModel sharded(&model, {{}, {}, 1, seed}, &mesh);
    for (const TensorSlice& slice : sharded.MasterSlices("")) {
      int64_t numel = 1;
      for (const int64_t extent : slice.global_shape) numel *= extent;
      at::Tensor& target = whole.try_emplace(slice.name, at::full({numel}, NAN)).first->second;
      target.slice(0, slice.offset, slice.offset + slice.data.numel()).copy_(slice.data);
    }
  }
  return whole;
}

TEST(ShardedModelTest, InitialWeightsDoNotDependOnTheWorldSize) {
  const auto one = Weights(1, 9);
  EXPECT_EQ(one.size(), 6U);
  for (const int world : {2, 3, 8}) {
    const auto other = Weights(world, 9);
    for (const auto& [name, tensor] : one)
      EXPECT_TRUE(at::equal(tensor, other.at(name))) << name << " in a world of " << world;
  }
  EXPECT_FALSE(at::equal(Weights(1, 10).at("s0.w"), one.at("s0.w")));
  EXPECT_TRUE(at::equal(one.at("s1.b"), at::ones({7})));
}

TEST(ShardedModelTest, GradientsAreThoseOfPlainAutogradOverMicroBatches) {
  ScaleModel model;
  const auto collectives = MakeSingleRankCollectives();
  const ShardingMesh mesh(ShardingConfig{}, collectives.get());
  ShardedModel sharded(&model, {{}, {}, 2, 3}, &mesh);
  EXPECT_EQ(sharded.parameter_count(), 3 * (35 + 7));
  const Batch batch{at::arange(0, 35, at::kLong).view({5, 7}), {}};
  const auto weights = Weights(1, 3);
  std::map<std::string, at::Tensor> leaves;
  for (const auto& [name, value] : weights)
    leaves[name] = value.clone()
                       .view(value.numel() == 35 ? at::IntArrayRef({5, 7}) : at::IntArrayRef({7}))
                       .set_requires_grad(true);
  for (int micro = 0; micro < 2; ++micro) {
    const at::Tensor loss = sharded.Forward(batch);
    at::Tensor x = batch.input_ids.to(at::kFloat);
    for (const char* stage : {"s0", "s1", "s2"})
      x = x * leaves[std::string(stage) + ".w"] + leaves[std::string(stage) + ".b"];
    EXPECT_EQ(loss.item<float>(), x.sum().item<float>());
    sharded.Backward(loss, at::full({}, 0.5), micro == 1);
    (x.sum() * 0.5).backward();
  }
  std::vector<at::Tensor> gradients;
  for (const ShardView& shard : sharded.shards()) gradients.push_back(shard.gradient);
  for (const TensorSlice& slice : sharded.SlicesOf("", gradients))
    EXPECT_TRUE(at::allclose(slice.data, leaves[slice.name].grad().reshape({-1}))) << slice.name;
  sharded.ClearGradients();
  EXPECT_FALSE(sharded.shards()[0].gradient.defined());
  const c10::NoGradGuard no_grad;
  EXPECT_FALSE(sharded.Forward(batch).requires_grad());
}

}  // namespace
}  // namespace mp::trainer
