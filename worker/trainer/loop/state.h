// All that a checkpoint holds, and how it is put in and taken out.
#pragma once

#include <cstdint>
#include <string>

#include "worker/trainer/checkpoint/checkpoint.h"
#include "worker/trainer/data/loader.h"
#include "worker/trainer/optim/optimizer.h"
#include "worker/trainer/precision/fp8/context.h"
#include "worker/trainer/precision/loss_scale.h"
#include "worker/trainer/report/reporter.h"
#include "worker/trainer/sharding/sharded_model.h"

namespace mp::trainer {

struct Progress {
  int64_t step = 0;  // attempted
  int64_t skipped_steps = 0;
  int64_t tokens = 0;  // of all ranks
};

// References to the parts of a running trainer; none is owned.
struct TrainingState {
  Progress* progress;
  ShardedModel* model;
  Optimizer* optimizer;
  LossScaler* scaler;
  fp8::Context* fp8;  // null without FP8
  TrainLoader* loader;
};

// Every rank calls it. False: permission was refused (reason on standard error). Throws TrainerError(kCheckpoint).
bool SaveState(const TrainingState& state, const std::string& output_dir, int attempt, Collectives* collectives,
               Reporter* reporter);

// resume_from: none | latest | path. True when a checkpoint was loaded. With "latest", damaged ones are reported and
// the one before is tried; none at all means a fresh start. Throws TrainerError(kCheckpoint) when there are some and
// none can be read.
bool LoadState(const TrainingState& state, const std::string& output_dir, const std::string& resume_from,
               Collectives* collectives, Reporter* reporter);

}  // namespace mp::trainer
