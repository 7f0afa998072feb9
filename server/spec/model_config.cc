// The checks of model.config that need no file: keys, types, ranges, and whether FP8 could do anything at all.
#include <google/protobuf/struct.pb.h>

#include <cmath>
#include <set>

#include "server/planner/llama.h"
#include "server/spec/check.h"
#include "server/spec/spec.h"

namespace mp {
namespace {

using google::protobuf::Value;

// Known keys that change nothing in a training step.
const std::set<std::string>& IgnoredKeys() {
  static const std::set<std::string> keys = {
      "architectures", "_name_or_path", "torch_dtype",          "dtype",         "use_cache", "bos_token_id",
      "eos_token_id",  "pad_token_id",  "transformers_version", "pretraining_tp"};
  return keys;
}

class ConfigReader {
 public:
  ConfigReader(const google::protobuf::Struct& config, SectionCheck* check) : config_(config), check_(check) {}

  const Value* Get(const std::string& key) {
    known_.insert(key);
    const auto it = config_.fields().find(key);
    return it == config_.fields().end() || it->second.has_null_value() ? nullptr : &it->second;
  }

  void Integer(const std::string& key, int64_t* target) {
    const Value* value = Get(key);
    if (value == nullptr) return;
    const double number = value->number_value();
    if (!value->has_number_value() || number != std::floor(number))
      return check_->Violate(key, "a whole number was expected");
    if (number < 1 || number > (1 << 24))
      return check_->Violate(key, absl::StrCat(number, " is out of range; it must be 1 to 16777216"));
    *target = static_cast<int64_t>(number);
  }

  void Positive(const std::string& key, double most) {
    const Value* value = Get(key);
    if (value == nullptr) return;
    if (!value->has_number_value()) return check_->Violate(key, "a number was expected");
    check_->Number(key, value->number_value(), value->number_value() > 0 && value->number_value() < most,
                   "greater than 0");
  }

  void Bool(const std::string& key, bool* target) {
    const Value* value = Get(key);
    if (value == nullptr) return;
    if (!value->has_bool_value()) return check_->Violate(key, "true or false was expected");
    *target = value->bool_value();
  }

  void RefuseOthers() {
    for (const auto& [key, value] : config_.fields()) {
      if (!known_.contains(key) && !IgnoredKeys().contains(key)) check_->Violate(key, "unknown key of a Llama config");
    }
  }

 private:
  const google::protobuf::Struct& config_;
  SectionCheck* check_;
  std::set<std::string> known_;
};

void CheckFixedKeys(ConfigReader* reader, SectionCheck* check) {
  if (const Value* value = reader->Get("hidden_act"); value != nullptr && value->string_value() != "silu") {
    check->Violate("hidden_act", "must be \"silu\"");
  }
  if (const Value* value = reader->Get("attention_dropout");
      value != nullptr && (!value->has_number_value() || value->number_value() != 0)) {
    check->Violate("attention_dropout", "must be 0");
  }
  if (const Value* value = reader->Get("rope_scaling"); value != nullptr) {
    const auto& fields = value->struct_value().fields();
    const auto type = fields.find("rope_type");
    if (type == fields.end() || type->second.string_value() != "default") {
      check->Violate("rope_scaling", "is not supported; leave it out or set it to null");
    }
  }
  if (const Value* value = reader->Get("rope_parameters"); value != nullptr) {
    for (const auto& [key, parameter] : value->struct_value().fields()) {
      const bool theta = key == "rope_theta" && parameter.number_value() > 0;
      const bool type = key == "rope_type" && parameter.string_value() == "default";
      if (!theta && !type) check->Violate("rope_parameters." + key, "must be rope_theta > 0 or rope_type \"default\"");
    }
  }
}

// An FP8 job of which no layer can run in FP8 can't do what it asks for.
void CheckFp8Eligible(const v1::JobSpec& spec, const LlamaDimensions& model, Violations* violations) {
  if (spec.precision().policy() != v1::PrecisionSpec::FP8) return;
  const int64_t tokens = int64_t{spec.training().per_device_train_batch_size()} * spec.data().sequence_length();
  if (tokens % 16 != 0) {
    violations->push_back(
        {"precision.policy",
         absl::StrCat(
             "FP8 needs a multiple of 16 tokens in a micro-batch; per_device_train_batch_size x sequence_length is ",
             tokens)});
  }
  if (!HasFp8EligibleLinear(model)) {
    violations->push_back({"precision.policy",
                           "no linear layer of this model can run in FP8: hidden_size, intermediate_size and the "
                           "projections must be multiples of 16"});
  }
}

}  // namespace

void CheckModelConfig(const v1::JobSpec& spec, Violations* violations) {
  SectionCheck model("model", violations);
  if (!spec.model().init_from().empty())
    model.Violate("init_from", "starting from weights is not supported yet; leave it empty");
  if (spec.model().has_config() == spec.model().has_config_path()) {
    return model.Violate("config", "exactly one of config and config_path is required");
  }
  if (spec.model().has_config_path()) return model.FilePath("config_path", spec.model().config_path());

  SectionCheck check("model.config", violations);
  ConfigReader reader(spec.model().config(), &check);
  const Value* type = reader.Get("model_type");
  if (type == nullptr || type->string_value() != "llama") {
    return check.Violate("model_type", type == nullptr ? "is required: \"llama\""
                                                       : absl::StrCat("\"", type->string_value(),
                                                                      "\" is not supported yet; it must be \"llama\""));
  }
  LlamaDimensions dimensions;
  reader.Integer("vocab_size", &dimensions.vocab_size);
  reader.Integer("hidden_size", &dimensions.hidden_size);
  reader.Integer("intermediate_size", &dimensions.intermediate_size);
  reader.Integer("num_hidden_layers", &dimensions.num_hidden_layers);
  reader.Integer("num_attention_heads", &dimensions.num_attention_heads);
  dimensions.num_key_value_heads = dimensions.num_attention_heads;
  reader.Integer("num_key_value_heads", &dimensions.num_key_value_heads);
  const bool has_head_dim = reader.Get("head_dim") != nullptr;
  dimensions.head_dim = dimensions.hidden_size / dimensions.num_attention_heads;
  reader.Integer("head_dim", &dimensions.head_dim);
  int64_t positions = 2048;
  reader.Integer("max_position_embeddings", &positions);
  reader.Positive("initializer_range", HUGE_VAL);
  reader.Positive("rms_norm_eps", 1);
  reader.Positive("rope_theta", HUGE_VAL);
  reader.Bool("attention_bias", &dimensions.attention_bias);
  reader.Bool("mlp_bias", &dimensions.mlp_bias);
  reader.Bool("tie_word_embeddings", &dimensions.tie_word_embeddings);
  CheckFixedKeys(&reader, &check);
  reader.RefuseOthers();

  if (!has_head_dim && dimensions.hidden_size % dimensions.num_attention_heads != 0) {
    check.Violate("num_attention_heads", absl::StrCat(dimensions.num_attention_heads, " does not divide hidden_size, ",
                                                      dimensions.hidden_size));
  }
  if (dimensions.num_attention_heads % dimensions.num_key_value_heads != 0) {
    check.Violate("num_key_value_heads",
                  absl::StrCat(dimensions.num_key_value_heads, " does not divide num_attention_heads, ",
                               dimensions.num_attention_heads));
  }
  if (dimensions.head_dim % 2 != 0)
    check.Violate("head_dim", absl::StrCat(dimensions.head_dim, " is odd; rotation needs pairs"));
  if (dimensions.vocab_size < 256)
    check.Violate("vocab_size",
                  absl::StrCat(dimensions.vocab_size, " is too small for byte tokens; at least 256 is needed"));
  if (spec.data().sequence_length() > positions) {
    violations->push_back(
        {"data.sequence_length", absl::StrCat(spec.data().sequence_length(),
                                              " is more than model.config.max_position_embeddings, ", positions)});
  }
  CheckFp8Eligible(spec, dimensions, violations);
}

}  // namespace mp
