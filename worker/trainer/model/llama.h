// Llama 2 as Hugging Face's LlamaForCausalLM computes it.
#pragma once

#include <memory>

#include "worker/trainer/config/job.h"
#include "worker/trainer/model/activation_offload.h"
#include "worker/trainer/model/llama_config.h"
#include "worker/trainer/model/model.h"
#include "worker/trainer/precision/fp8/context.h"

namespace mp::trainer {

// See MakeModel in registry.h for the arguments.
std::unique_ptr<Model> MakeLlama(const LlamaConfig& config, const PrecisionConfig& precision,
                                 const ActivationCheckpointingConfig& checkpointing, int64_t tokens_per_micro_batch,
                                 fp8::Context* fp8, ActivationOffload* offload = nullptr);

}  // namespace mp::trainer
