#include "server/planner/llama.h"

namespace mp {

int64_t ParameterCount(const LlamaDimensions& m) {
  const int64_t query = m.num_attention_heads * m.head_dim;
  const int64_t key_value = m.num_key_value_heads * m.head_dim;
  int64_t attention = m.hidden_size * (2 * query + 2 * key_value);
  if (m.attention_bias) attention += query + 2 * key_value + m.hidden_size;
  int64_t mlp = 3 * m.hidden_size * m.intermediate_size;
  if (m.mlp_bias) mlp += 2 * m.intermediate_size + m.hidden_size;
  const int64_t norms = 2 * m.hidden_size;
  const int64_t tables = m.tie_word_embeddings ? 1 : 2;
  return tables * m.vocab_size * m.hidden_size + m.num_hidden_layers * (attention + mlp + norms) + m.hidden_size;
}

bool HasFp8EligibleLinear(const LlamaDimensions& m) {
  const auto even = [](int64_t value) { return value % 16 == 0; };
  return even(m.hidden_size) && (even(m.intermediate_size) || even(m.num_attention_heads * m.head_dim) ||
                                 even(m.num_key_value_heads * m.head_dim));
}

bool ClassRunsPolicy(v1::ResourceSpec::NodeClass node_class, v1::PrecisionSpec::Policy policy) {
  return policy != v1::PrecisionSpec::FP8 || node_class != v1::ResourceSpec::P4;
}

}  // namespace mp
