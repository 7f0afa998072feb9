#include "worker/trainer/model/llama_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/trainer/config/error.h"

namespace mp::trainer {
namespace {

using testing::HasSubstr;

std::string ErrorOf(const std::string& json) {
  try {
    ParseLlamaConfig(ParseJson(json), "model.config");
  } catch (const TrainerError& error) {
    EXPECT_EQ(error.cause(), EndCause::kBadConfig);
    return error.what();
  }
  return "";
}

TEST(LlamaConfigTest, DefaultsAreThoseOfTransformers) {
  const LlamaConfig config = ParseLlamaConfig(ParseJson(R"({"model_type": "llama"})"), "model.config");
  EXPECT_EQ(config.hidden_size, 4096);
  EXPECT_EQ(config.num_key_value_heads, 32);
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_EQ(config.rms_norm_eps, 1e-6);
}

TEST(LlamaConfigTest, ReadsBothFormsOfRopeTheta) {
  EXPECT_EQ(ParseLlamaConfig(ParseJson(R"({"model_type": "llama", "rope_theta": 5e5})"), "c").rope_theta, 5e5);
  EXPECT_EQ(
      ParseLlamaConfig(
          ParseJson(R"({"model_type": "llama", "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}})"), "c")
          .rope_theta,
      5e5);
}

TEST(LlamaConfigTest, NamesEveryOffendingKeyAtOnce) {
  const std::string error =
      ErrorOf(R"({"model_type": "llama", "hidden_sise": 1, "hidden_act": "gelu", "vocab_size": "many",
    "num_attention_heads": 3, "rope_scaling": {"rope_type": "yarn"}, "tie_word_embeddings": 1})");
  for (const char* path :
       {"model.config.hidden_sise", "model.config.hidden_act", "model.config.vocab_size",
        "model.config.num_attention_heads", "model.config.rope_scaling", "model.config.tie_word_embeddings"}) {
    EXPECT_THAT(error, HasSubstr(path));
  }
}

}  // namespace
}  // namespace mp::trainer
