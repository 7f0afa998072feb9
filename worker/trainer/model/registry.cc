#include "worker/trainer/model/registry.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "worker/trainer/config/error.h"
#include "worker/trainer/model/llama.h"

namespace mp::trainer {
namespace {

JsonValue ReadConfigFile(const std::string& folder) {
  const std::string path = (std::filesystem::path(folder) / "config.json").string();
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    const int error = errno;
    throw TrainerError(error == ENOENT ? EndCause::kMissingFile : EndCause::kBadConfig,
                       "model.config_path: " + path + ": " + std::generic_category().message(error));
  }
  std::ostringstream text;
  text << file.rdbuf();
  try {
    return ParseJson(text.str());
  } catch (const JsonError& error) {
    throw TrainerError(EndCause::kBadConfig, "model.config_path: " + path + ": " + error.what());
  }
}

}  // namespace

std::unique_ptr<Model> MakeModel(const ModelConfig& model, const PrecisionConfig& precision,
                                 const ActivationCheckpointingConfig& checkpointing, int64_t tokens_per_micro_batch,
                                 fp8::Context* fp8, ActivationOffload* offload) {
  const bool from_file = !model.config_path.empty();
  const JsonValue config = from_file ? ReadConfigFile(model.config_path) : model.hf_config;
  const std::string field = from_file ? model.config_path + "/config.json" : "model.config";
  const JsonValue* type = config.Find("model_type");
  if (type == nullptr || *type != JsonValue("llama")) {
    throw TrainerError(EndCause::kBadConfig,
                       field +
                           ".model_type: " + (type == nullptr ? "is missing" : type->ToString() + " is not supported") +
                           "; it must be \"llama\"");
  }
  return MakeLlama(ParseLlamaConfig(config, field), precision, checkpointing, tokens_per_micro_batch, fp8, offload);
}

}  // namespace mp::trainer
