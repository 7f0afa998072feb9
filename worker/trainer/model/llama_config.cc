#include "worker/trainer/model/llama_config.h"

#include <limits>

#include "worker/trainer/config/error.h"
#include "worker/trainer/config/fields.h"

namespace mp::trainer {
namespace {

constexpr int64_t kMaxExtent = int64_t{1} << 24;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Keys that say nothing about the computation of a training step.
constexpr const char* kIgnoredKeys[] = {
    "architectures", "_name_or_path", "torch_dtype",          "dtype",         "use_cache", "bos_token_id",
    "eos_token_id",  "pad_token_id",  "transformers_version", "pretraining_tp"};

// The only legal value; another one would change the model.
template <typename T>
void Fixed(FieldReader* fields, const std::string& name, const T& legal) {
  const JsonValue* value = fields->Get(name);
  if (value != nullptr && *value != JsonValue(legal)) {
    fields->Violate(name, value->ToString() + " is not supported; it must be " + JsonValue(legal).ToString());
  }
}

void Rope(FieldReader* fields, Violations* violations, const std::string& field, LlamaConfig* config) {
  fields->Double("rope_theta", 0, true, kInfinity, false, &config->rope_theta);
  if (const JsonValue* scaling = fields->Get("rope_scaling")) {
    const JsonValue* type = scaling->Find("rope_type");
    if (type == nullptr || *type != JsonValue("default")) {
      fields->Violate("rope_scaling", scaling->ToString() + " is not supported; leave it out or set it to null");
    }
  }
  FieldReader parameters(violations, field + ".rope_parameters", fields->Get("rope_parameters"));
  parameters.Double("rope_theta", 0, true, kInfinity, false, &config->rope_theta);
  Fixed(&parameters, "rope_type", "default");
  parameters.RefuseOthers();
}

}  // namespace

LlamaConfig ParseLlamaConfig(const JsonValue& object, const std::string& field) {
  Violations violations;
  FieldReader fields(&violations, field, &object);
  LlamaConfig config;
  Fixed(&fields, "model_type", "llama");
  if (!fields.Has("model_type")) fields.Violate("model_type", "is required: \"llama\"");
  fields.Integer("vocab_size", 1, kMaxExtent, &config.vocab_size);
  fields.Integer("hidden_size", 1, kMaxExtent, &config.hidden_size);
  fields.Integer("intermediate_size", 1, kMaxExtent, &config.intermediate_size);
  fields.Integer("num_hidden_layers", 1, 4096, &config.num_hidden_layers);
  fields.Integer("num_attention_heads", 1, kMaxExtent, &config.num_attention_heads);
  config.num_key_value_heads = config.num_attention_heads;
  fields.Integer("num_key_value_heads", 1, kMaxExtent, &config.num_key_value_heads);
  const bool has_head_dim = fields.Has("head_dim");
  config.head_dim = config.hidden_size / config.num_attention_heads;
  fields.Integer("head_dim", 1, kMaxExtent, &config.head_dim);
  fields.Integer("max_position_embeddings", 1, kMaxExtent, &config.max_position_embeddings);
  fields.Double("initializer_range", 0, true, kInfinity, false, &config.initializer_range);
  fields.Double("rms_norm_eps", 0, true, 1, true, &config.rms_norm_eps);
  fields.Bool("attention_bias", &config.attention_bias);
  fields.Bool("mlp_bias", &config.mlp_bias);
  Fixed(&fields, "hidden_act", "silu");
  fields.Bool("tie_word_embeddings", &config.tie_word_embeddings);
  double dropout = 0;
  fields.Double("attention_dropout", 0, false, 0, false, &dropout);
  Rope(&fields, &violations, field, &config);
  for (const char* key : kIgnoredKeys) fields.Get(key);
  fields.RefuseOthers();
  if (!has_head_dim && config.hidden_size % config.num_attention_heads != 0) {
    fields.Violate("num_attention_heads", std::to_string(config.num_attention_heads) +
                                              " does not divide hidden_size, " + std::to_string(config.hidden_size));
  }
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    fields.Violate("num_key_value_heads", std::to_string(config.num_key_value_heads) +
                                              " does not divide num_attention_heads, " +
                                              std::to_string(config.num_attention_heads));
  }
  if (config.head_dim % 2 != 0)
    fields.Violate("head_dim", std::to_string(config.head_dim) + " is odd; rotation needs pairs");
  if (!violations.empty()) {
    std::string message = "the model's config has " + std::to_string(violations.size()) + " error(s):";
    for (const std::string& violation : violations) message += "\n  " + violation;
    throw TrainerError(EndCause::kBadConfig, message);
  }
  return config;
}

}  // namespace mp::trainer
