#include <algorithm>

#include "server/spec/spec.h"

namespace mp {
namespace {

// Sets an absent field.
#define MP_DEFAULT(message, field, value)                         \
  do {                                                            \
    if (!(message)->has_##field()) (message)->set_##field(value); \
  } while (false)

v1::Dtype::Value TypeOf(v1::PrecisionSpec::Policy policy) {
  switch (policy) {
    case v1::PrecisionSpec::BF16:
    case v1::PrecisionSpec::FP8:
      return v1::Dtype::BF16;
    case v1::PrecisionSpec::FP16:
      return v1::Dtype::FP16;
    default:
      return v1::Dtype::FP32;
  }
}

void FillPrecision(v1::PrecisionSpec* precision) {
  MP_DEFAULT(precision, policy, v1::PrecisionSpec::FP32);
  MP_DEFAULT(precision, param_dtype, TypeOf(precision->policy()));
  MP_DEFAULT(precision, reduce_dtype, precision->param_dtype());
  MP_DEFAULT(precision, buffer_dtype, v1::Dtype::FP32);
  auto* scale = precision->mutable_loss_scale();
  MP_DEFAULT(scale, mode,
             precision->param_dtype() == v1::Dtype::FP16 ? v1::LossScaleSpec::DYNAMIC : v1::LossScaleSpec::NONE);
  if (scale->mode() == v1::LossScaleSpec::DYNAMIC) {
    MP_DEFAULT(scale, init_scale, 65536.0);
    MP_DEFAULT(scale, growth_factor, 2.0);
    MP_DEFAULT(scale, backoff_factor, 0.5);
    MP_DEFAULT(scale, growth_interval, 2000);
    MP_DEFAULT(scale, min_scale, std::min(1.0, scale->init_scale()));
  }
  if (scale->mode() != v1::LossScaleSpec::NONE) MP_DEFAULT(scale, max_consecutive_skips, 100);
  if (precision->policy() == v1::PrecisionSpec::FP8) {
    auto* fp8 = precision->mutable_fp8();
    MP_DEFAULT(fp8, format, v1::Fp8Spec::HYBRID);
    MP_DEFAULT(fp8, scaling, v1::Fp8Spec::DELAYED);
    MP_DEFAULT(fp8, amax_history_len, 32);
    MP_DEFAULT(fp8, amax_compute_algo, v1::Fp8Spec::MAX);
    MP_DEFAULT(fp8, margin, 0);
  }
}

void FillSharding(const v1::JobSpec& spec, v1::ShardingSpec* sharding) {
  MP_DEFAULT(sharding, strategy, v1::ShardingSpec::FULL_SHARD);
  const bool hybrid = sharding->strategy() == v1::ShardingSpec::HYBRID_SHARD;
  if (hybrid) MP_DEFAULT(sharding, hybrid_shard_degree, spec.resources().devices_per_node());
  MP_DEFAULT(sharding, reshard_after_forward, hybrid || sharding->strategy() == v1::ShardingSpec::FULL_SHARD);
  MP_DEFAULT(sharding, forward_prefetch, true);
  MP_DEFAULT(sharding, backward_prefetch, v1::ShardingSpec::BACKWARD_PRE);
  MP_DEFAULT(sharding, limit_all_gathers, true);
  MP_DEFAULT(sharding, sync_each_batch, true);
  MP_DEFAULT(sharding, cpu_offload, false);
}

void FillData(v1::DataSpec* data) {
  for (auto& source : *data->mutable_train()) MP_DEFAULT(&source, format, v1::DataSource::TEXT);
  for (auto& source : *data->mutable_eval()) MP_DEFAULT(&source, format, v1::DataSource::TEXT);
  MP_DEFAULT(data->mutable_tokenizer(), type, v1::TokenizerSpec::BYTE);
  MP_DEFAULT(data, sequence_length, 512);
}

void FillTraining(v1::TrainingSpec* training) {
  MP_DEFAULT(training, per_device_train_batch_size, 8);
  MP_DEFAULT(training, per_device_eval_batch_size, training->per_device_train_batch_size());
  MP_DEFAULT(training, gradient_accumulation_steps, 1);
  MP_DEFAULT(training, learning_rate, 5e-5);
  MP_DEFAULT(training, lr_scheduler_type, v1::TrainingSpec::LINEAR);
  MP_DEFAULT(training, warmup_steps, 0);
  MP_DEFAULT(training, min_lr_ratio, 0.0);
  MP_DEFAULT(training, optim, v1::TrainingSpec::ADAMW);
  if (training->optim() == v1::TrainingSpec::SGD) MP_DEFAULT(training, momentum, 0.0);
  MP_DEFAULT(training, weight_decay, 0.0);
  MP_DEFAULT(training, adam_beta1, 0.9);
  MP_DEFAULT(training, adam_beta2, 0.999);
  MP_DEFAULT(training, adam_epsilon, 1e-8);
  MP_DEFAULT(training, max_grad_norm, 1.0);
  MP_DEFAULT(training, eval_strategy, v1::TrainingSpec::NO);
  MP_DEFAULT(training, save_steps, 0);
  MP_DEFAULT(training, logging_steps, 10);
  MP_DEFAULT(training, seed, 42);
  MP_DEFAULT(training, resume_from_checkpoint, "none");
  MP_DEFAULT(training->mutable_activation_checkpointing(), mode, v1::ActivationCheckpointingSpec::NONE);
  MP_DEFAULT(training->mutable_activation_checkpointing(), every_n_layers, 1);
  MP_DEFAULT(training->mutable_activation_checkpointing(), offload, false);
  MP_DEFAULT(training->mutable_activation_checkpointing(), loading_horizon, 4);
  MP_DEFAULT(training, cuda_graph, false);
}

}  // namespace

void FillDefaults(v1::JobSpec* spec) {
  auto* resources = spec->mutable_resources();
  MP_DEFAULT(resources, nodes, 1);
  MP_DEFAULT(resources, devices_per_node, 1);
  MP_DEFAULT(resources, node_class, v1::ResourceSpec::CPU);
  if (!spec->has_workload()) {
    MP_DEFAULT(spec->mutable_model(), init_from, "");
    FillPrecision(spec->mutable_precision());
    FillSharding(*spec, spec->mutable_sharding());
    FillData(spec->mutable_data());
    FillTraining(spec->mutable_training());
  }
  auto* scheduling = spec->mutable_scheduling();
  MP_DEFAULT(scheduling, queue, "default");
  MP_DEFAULT(scheduling, priority, 0);
  if (!scheduling->has_time_limit()) scheduling->mutable_time_limit();
  MP_DEFAULT(spec->mutable_restart(), max_attempts, 3);
}

#undef MP_DEFAULT

}  // namespace mp
