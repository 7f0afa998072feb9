// A Llama config.json of Hugging Face Transformers, old and new forms.
#pragma once

#include <cstdint>
#include <string>

#include "worker/trainer/json/json.h"

namespace mp::trainer {

struct LlamaConfig {
  int64_t vocab_size = 32000;
  int64_t hidden_size = 4096;
  int64_t intermediate_size = 11008;
  int64_t num_hidden_layers = 32;
  int64_t num_attention_heads = 32;
  int64_t num_key_value_heads = 32;  // default: num_attention_heads
  int64_t head_dim = 128;            // default: hidden_size / num_attention_heads
  int64_t max_position_embeddings = 2048;
  double initializer_range = 0.02;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  bool attention_bias = false;
  bool mlp_bias = false;
  bool tie_word_embeddings = false;
};

// `field` is the object's place in errors ("model.config"). Throws TrainerError(kBadConfig) naming every key that is
// unknown, of a wrong type, out of range, contradictory or not supported.
LlamaConfig ParseLlamaConfig(const JsonValue& config, const std::string& field);

}  // namespace mp::trainer
