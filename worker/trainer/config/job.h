// The job file as typed structs: the resolved JobSpec of proto/mp/v1/job.proto in proto3 JSON (snake_case). Field
// meanings, units and defaults are documented there; an absent field takes the same default here, so that a
// hand-written job file works as well.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

#include "worker/trainer/json/json.h"

namespace mp::trainer {

struct LossScaleConfig {
  enum class Mode { kNone, kDynamic, kStatic };
  Mode mode = Mode::kNone;
  double init_scale = 65536.0;
  double growth_factor = 2.0;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
  double min_scale = 1.0;               // kDynamic; 0: no floor
  double scale = 1.0;                   // kStatic
  int64_t max_consecutive_skips = 100;  // kDynamic and kStatic; 0: never give up
};

// Delayed scaling as Transformer Engine defines it.
struct Fp8Config {
  enum class Format { kHybrid, kE4M3 };
  enum class AmaxComputeAlgo { kMax, kMostRecent };
  Format format = Format::kHybrid;
  int amax_history_len = 32;
  AmaxComputeAlgo amax_compute_algo = AmaxComputeAlgo::kMax;
  int margin = 0;
};

struct PrecisionConfig {
  enum class Policy { kFP32, kBF16, kFP16, kFP8 };
  Policy policy = Policy::kFP32;
  c10::ScalarType param_dtype = c10::ScalarType::Float;
  c10::ScalarType reduce_dtype = c10::ScalarType::Float;
  c10::ScalarType buffer_dtype = c10::ScalarType::Float;
  LossScaleConfig loss_scale;
  Fp8Config fp8;  // read only with Policy::kFP8
};

struct ShardingConfig {
  enum class Strategy { kFullShard, kShardGradOp, kNoShard, kHybridShard };
  enum class BackwardPrefetch { kPre, kPost, kNone };
  Strategy strategy = Strategy::kFullShard;
  int64_t hybrid_shard_degree = 1;  // kHybridShard
  bool reshard_after_forward = true;
  bool forward_prefetch = true;
  BackwardPrefetch backward_prefetch = BackwardPrefetch::kPre;
  bool limit_all_gathers = true;
  bool sync_each_batch = true;
  bool cpu_offload = false;  // masters, gradients and optimizer state stay in host memory
};

struct ActivationCheckpointingConfig {
  enum class Mode { kNone, kFull, kAttention, kMlp };
  Mode mode = Mode::kNone;
  int64_t every_n_layers = 1;
  bool offload = false;         // inputs of what runs again wait in host memory
  int64_t loading_horizon = 4;  // layers brought back ahead
};

struct ModelConfig {
  JsonValue hf_config;      // object of HF config keys; null when config_path is set
  std::string config_path;  // folder with config.json
  std::string init_from;    // empty: random
};

struct DataSourceConfig {
  enum class Format { kText };
  std::string path;
  Format format = Format::kText;
};

struct DataConfig {
  std::vector<DataSourceConfig> train;
  std::vector<DataSourceConfig> eval;
  int64_t sequence_length = 512;  // tokens
};

struct TrainingConfig {
  enum class LrSchedule { kLinear, kCosine, kConstant };
  enum class EvalStrategy { kNo, kSteps };
  enum class Optimizer { kAdamW, kAdam, kSgd };
  int64_t max_steps = 0;
  int64_t per_device_train_batch_size = 8;
  int64_t per_device_eval_batch_size = 8;
  int64_t gradient_accumulation_steps = 1;
  double learning_rate = 5e-5;
  LrSchedule lr_schedule = LrSchedule::kLinear;
  int64_t warmup_steps = 0;
  double min_lr_ratio = 0;
  Optimizer optim = Optimizer::kAdamW;
  double momentum = 0;  // kSgd
  double weight_decay = 0;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_epsilon = 1e-8;
  double max_grad_norm = 1.0;  // 0: off
  EvalStrategy eval_strategy = EvalStrategy::kNo;
  int64_t eval_steps = 0;
  int64_t save_steps = 0;  // 0: only after the last step
  int64_t logging_steps = 10;
  int64_t seed = 42;
  std::string output_dir;
  std::string resume_from_checkpoint = "none";  // none | latest | path
  ActivationCheckpointingConfig activation_checkpointing;
  bool cuda_graph = false;
};

struct JobConfig {
  enum class Device { kCPU, kCUDA };
  std::string name;
  Device device = Device::kCPU;  // what hosts of resources.node_class train on
  ModelConfig model;
  PrecisionConfig precision;
  ShardingConfig sharding;
  DataConfig data;
  TrainingConfig training;
};

// Reads a job file. Throws BadConfig that names every offending field with its path and what would be right.
JobConfig ParseJob(const std::string& json_text);

// The job with every default filled in, in the form that ParseJob reads.
std::string JobToJson(const JobConfig& job);

}  // namespace mp::trainer
