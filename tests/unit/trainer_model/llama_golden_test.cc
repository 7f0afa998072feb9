// Our Llama against Hugging Face Transformers in fp32: logits, loss and every gradient.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/golden/golden_file.h"
#include "worker/trainer/model/registry.h"

namespace mp::trainer {
namespace {

constexpr double kTolerance = 1e-5;

class LlamaGoldenTest : public testing::TestWithParam<const char*> {};

TEST_P(LlamaGoldenTest, LogitsLossAndEveryGradientAgree) {
  const GoldenFile golden = ReadGolden(std::string("llama/") + GetParam() + ".safetensors");
  ModelConfig config;
  config.hf_config = ParseJson(golden.metadata.At("config").AsString());
  const auto model = MakeModel(config, PrecisionConfig{}, {}, 32, nullptr);
  const Batch batch{golden.tensors.at("input_ids"), golden.tensors.at("labels")};

  std::vector<ParameterList> parameters;
  size_t count = 0;
  for (const auto& stage : model->stages()) {
    ParameterList& list = parameters.emplace_back();
    for (const ParameterSpec& spec : stage->parameters()) {
      ASSERT_TRUE(golden.tensors.contains("param/" + spec.name)) << spec.name;
      at::Tensor parameter = golden.tensors.at("param/" + spec.name).clone();
      ASSERT_EQ(parameter.sizes(), at::IntArrayRef(spec.shape)) << spec.name;
      list.push_back(parameter.set_requires_grad(true));
      ++count;
    }
  }
  // param/, grad/ of each, and four others: no parameter of the golden model is missing in ours.
  ASSERT_EQ(golden.tensors.size(), 2 * count + 4);

  at::Tensor x;
  at::Tensor logits;
  for (size_t i = 0; i < model->stages().size(); ++i) {
    if (i + 1 == model->stages().size()) logits = model->Logits(x, parameters[i]);
    x = model->stages()[i]->Forward(x, parameters[i], batch);
  }
  EXPECT_LE(RelativeDistance(logits.detach(), golden.tensors.at("logits")), kTolerance);
  EXPECT_LE(RelativeDistance(x.detach().reshape({1}), golden.tensors.at("loss_sum")), kTolerance);
  torch::autograd::backward({x}, {at::ones({})});
  for (size_t i = 0; i < model->stages().size(); ++i) {
    for (size_t j = 0; j < parameters[i].size(); ++j) {
      const std::string& name = model->stages()[i]->parameters()[j].name;
      EXPECT_LE(RelativeDistance(parameters[i][j].grad(), golden.tensors.at("grad/" + name)), kTolerance) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Configs, LlamaGoldenTest, testing::Values("mha", "gqa", "bias_headdim"),
                         [](const auto& parameter) { return std::string(parameter.param); });

}  // namespace
}  // namespace mp::trainer
