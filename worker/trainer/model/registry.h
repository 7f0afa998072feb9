// From a Hugging Face config to a model.
#pragma once

#include <memory>

#include "worker/trainer/config/job.h"
#include "worker/trainer/model/activation_offload.h"
#include "worker/trainer/model/model.h"
#include "worker/trainer/precision/fp8/context.h"

namespace mp::trainer {

// `fp8` is not owned, must outlive the model and is null unless the policy is FP8. `tokens_per_micro_batch` = batch *
// sequence decides FP8 eligibility (multiple of 16). Throws TrainerError(kBadConfig) for a config that is unknown or
// contradictory.
std::unique_ptr<Model> MakeModel(const ModelConfig& model, const PrecisionConfig& precision,
                                 const ActivationCheckpointingConfig& checkpointing, int64_t tokens_per_micro_batch,
                                 fp8::Context* fp8, ActivationOffload* offload = nullptr);

}  // namespace mp::trainer
