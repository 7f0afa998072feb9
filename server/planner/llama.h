// Arithmetic on a Llama config: exact parameter counts, what FP8 can take. Pure; allocates nothing.
#pragma once

#include <cstdint>

#include "mp/v1/job.pb.h"

namespace mp {

// Defaults are those of Transformers' LlamaConfig.
struct LlamaDimensions {
  int64_t vocab_size = 32000;
  int64_t hidden_size = 4096;
  int64_t intermediate_size = 11008;
  int64_t num_hidden_layers = 32;
  int64_t num_attention_heads = 32;
  int64_t num_key_value_heads = 32;
  int64_t head_dim = 128;
  bool attention_bias = false;
  bool mlp_bias = false;
  bool tie_word_embeddings = false;
};

int64_t ParameterCount(const LlamaDimensions& model);

// Whether any linear layer has both dims a multiple of 16.
bool HasFp8EligibleLinear(const LlamaDimensions& model);

// Whether devices of a class run a policy: FP8 on P5, and emulated on CPU.
bool ClassRunsPolicy(v1::ResourceSpec::NodeClass node_class, v1::PrecisionSpec::Policy policy);

}  // namespace mp
