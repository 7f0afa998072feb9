#include "worker/trainer/config/job.h"

#include <algorithm>
#include <limits>

#include "worker/trainer/config/error.h"
#include "worker/trainer/config/fields.h"

namespace mp::trainer {
namespace {

using c10::ScalarType;
using Policy = PrecisionConfig::Policy;

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <typename T>
using Names = std::vector<std::pair<std::string, T>>;

const Names<JobConfig::Device> kDevices = {
    {"CPU", JobConfig::Device::kCPU}, {"P4", JobConfig::Device::kCUDA}, {"P5", JobConfig::Device::kCUDA}};
const Names<Policy> kPolicies = {
    {"FP32", Policy::kFP32}, {"BF16", Policy::kBF16}, {"FP16", Policy::kFP16}, {"FP8", Policy::kFP8}};
const Names<ScalarType> kDtypes = {
    {"FP32", ScalarType::Float}, {"BF16", ScalarType::BFloat16}, {"FP16", ScalarType::Half}};
const Names<LossScaleConfig::Mode> kLossScaleModes = {{"NONE", LossScaleConfig::Mode::kNone},
                                                      {"DYNAMIC", LossScaleConfig::Mode::kDynamic},
                                                      {"STATIC", LossScaleConfig::Mode::kStatic}};
const Names<Fp8Config::Format> kFp8Formats = {{"HYBRID", Fp8Config::Format::kHybrid},
                                              {"E4M3", Fp8Config::Format::kE4M3}};
const Names<Fp8Config::AmaxComputeAlgo> kAmaxAlgos = {{"MAX", Fp8Config::AmaxComputeAlgo::kMax},
                                                      {"MOST_RECENT", Fp8Config::AmaxComputeAlgo::kMostRecent}};
const Names<ShardingConfig::Strategy> kStrategies = {{"FULL_SHARD", ShardingConfig::Strategy::kFullShard},
                                                     {"SHARD_GRAD_OP", ShardingConfig::Strategy::kShardGradOp},
                                                     {"NO_SHARD", ShardingConfig::Strategy::kNoShard},
                                                     {"HYBRID_SHARD", ShardingConfig::Strategy::kHybridShard}};
const Names<ShardingConfig::BackwardPrefetch> kBackwardPrefetches = {
    {"BACKWARD_PRE", ShardingConfig::BackwardPrefetch::kPre},
    {"BACKWARD_POST", ShardingConfig::BackwardPrefetch::kPost},
    {"NO_PREFETCH", ShardingConfig::BackwardPrefetch::kNone}};
const Names<ActivationCheckpointingConfig::Mode> kCheckpointingModes = {
    {"NONE", ActivationCheckpointingConfig::Mode::kNone},
    {"FULL", ActivationCheckpointingConfig::Mode::kFull},
    {"ATTENTION", ActivationCheckpointingConfig::Mode::kAttention},
    {"MLP", ActivationCheckpointingConfig::Mode::kMlp}};
const Names<TrainingConfig::Optimizer> kOptimizers = {{"ADAMW", TrainingConfig::Optimizer::kAdamW},
                                                      {"ADAM", TrainingConfig::Optimizer::kAdam},
                                                      {"SGD", TrainingConfig::Optimizer::kSgd}};
const Names<TrainingConfig::LrSchedule> kSchedules = {{"LINEAR", TrainingConfig::LrSchedule::kLinear},
                                                      {"COSINE", TrainingConfig::LrSchedule::kCosine},
                                                      {"CONSTANT", TrainingConfig::LrSchedule::kConstant}};
const Names<TrainingConfig::EvalStrategy> kEvalStrategies = {{"NO", TrainingConfig::EvalStrategy::kNo},
                                                             {"STEPS", TrainingConfig::EvalStrategy::kSteps}};
const Names<DataSourceConfig::Format> kDataFormats = {{"TEXT", DataSourceConfig::Format::kText}};
// Values with a single legal choice so far.
const Names<int> kScalings = {{"DELAYED", 0}};
const Names<int> kTokenizers = {{"BYTE", 0}};

template <typename T>
std::string NameOf(const Names<T>& names, T value) {
  for (const auto& [name, meaning] : names) {
    if (meaning == value) return name;
  }
  return "";
}

void ParseModel(Violations* violations, const JsonValue* object, ModelConfig* model) {
  FieldReader fields(violations, "model", object);
  if (const JsonValue* config = fields.Get("config")) {
    if (config->is_object()) {
      model->hf_config = *config;
    } else {
      fields.Violate("config",
                     std::string("an object of Hugging Face config keys was expected, this is ") + config->type_name());
    }
  }
  fields.String("config_path", &model->config_path);
  fields.String("init_from", &model->init_from);
  if (fields.Has("config") == !model->config_path.empty()) {
    fields.Violate("config", "exactly one of config and config_path is required");
  }
  if (!model->init_from.empty())
    fields.Violate("init_from", "starting from weights is not supported yet; leave it empty");
  fields.RefuseOthers();
}

void ParseLossScale(Violations* violations, const JsonValue* object, ScalarType param_dtype, LossScaleConfig* config) {
  using Mode = LossScaleConfig::Mode;
  FieldReader fields(violations, "precision.loss_scale", object);
  config->mode = param_dtype == ScalarType::Half ? Mode::kDynamic : Mode::kNone;
  fields.Enum("mode", kLossScaleModes, &config->mode);
  const auto only_with = [&](const std::string& name, Mode mode) {
    if (config->mode != mode && fields.Has(name)) {
      fields.Violate(name, "is read with mode " + NameOf(kLossScaleModes, mode) + " only; the mode is " +
                               NameOf(kLossScaleModes, config->mode));
    }
  };
  fields.Double("init_scale", 0, true, kInfinity, false, &config->init_scale);
  fields.Double("growth_factor", 1, true, kInfinity, false, &config->growth_factor);
  fields.Double("backoff_factor", 0, true, 1, true, &config->backoff_factor);
  fields.Integer("growth_interval", 1, kMaxInt64, &config->growth_interval);
  config->min_scale = std::min(1.0, config->init_scale);
  fields.Double("min_scale", 0, false, config->init_scale, false, &config->min_scale);
  fields.Double("scale", 0, true, kInfinity, false, &config->scale);
  fields.Integer("max_consecutive_skips", 0, kMaxInt64, &config->max_consecutive_skips);
  for (const char* name : {"init_scale", "growth_factor", "backoff_factor", "growth_interval", "min_scale"}) {
    only_with(name, Mode::kDynamic);
  }
  if (config->mode == Mode::kNone && fields.Has("max_consecutive_skips")) {
    fields.Violate("max_consecutive_skips", "is read with modes DYNAMIC and STATIC only; the mode is NONE");
  }
  only_with("scale", Mode::kStatic);
  if (config->mode == Mode::kStatic && !fields.Has("scale")) fields.Violate("scale", "is required with mode STATIC");
  fields.RefuseOthers();
}

void ParseFp8(Violations* violations, const JsonValue* object, Policy policy, Fp8Config* config) {
  FieldReader fields(violations, "precision.fp8", object);
  if (object != nullptr && policy != Policy::kFP8) {
    violations->push_back("precision.fp8: is read with policy FP8 only; the policy is " + NameOf(kPolicies, policy));
  }
  int scaling = 0;
  int64_t history = config->amax_history_len;
  int64_t margin = config->margin;
  fields.Enum("format", kFp8Formats, &config->format);
  fields.Enum("scaling", kScalings, &scaling);
  fields.Integer("amax_history_len", 1, 1024, &history);
  fields.Enum("amax_compute_algo", kAmaxAlgos, &config->amax_compute_algo);
  fields.Integer("margin", 0, 16, &margin);
  config->amax_history_len = static_cast<int>(history);
  config->margin = static_cast<int>(margin);
  fields.RefuseOthers();
}

void ParsePrecision(Violations* violations, const JsonValue* object, PrecisionConfig* precision) {
  FieldReader fields(violations, "precision", object);
  fields.Enum("policy", kPolicies, &precision->policy);
  switch (precision->policy) {
    case Policy::kFP32:
      precision->param_dtype = ScalarType::Float;
      break;
    case Policy::kFP16:
      precision->param_dtype = ScalarType::Half;
      break;
    case Policy::kBF16:
    case Policy::kFP8:
      precision->param_dtype = ScalarType::BFloat16;
      break;
  }
  const ScalarType natural = precision->param_dtype;
  fields.Enum("param_dtype", kDtypes, &precision->param_dtype);
  const bool legal = precision->policy == Policy::kFP8 ? precision->param_dtype != ScalarType::Float
                                                       : precision->param_dtype == natural;
  if (!legal) {
    fields.Violate("param_dtype", NameOf(kDtypes, precision->param_dtype) + " does not go with policy " +
                                      NameOf(kPolicies, precision->policy) + "; it must be " +
                                      (precision->policy == Policy::kFP8 ? "BF16 or FP16" : NameOf(kDtypes, natural)));
  }
  precision->reduce_dtype = precision->param_dtype;
  fields.Enum("reduce_dtype", kDtypes, &precision->reduce_dtype);
  fields.Enum("buffer_dtype", kDtypes, &precision->buffer_dtype);
  ParseLossScale(violations, fields.Get("loss_scale"), precision->param_dtype, &precision->loss_scale);
  ParseFp8(violations, fields.Get("fp8"), precision->policy, &precision->fp8);
  fields.RefuseOthers();
}

void ParseSharding(Violations* violations, const JsonValue* object, int64_t devices_per_node,
                   ShardingConfig* sharding) {
  using Strategy = ShardingConfig::Strategy;
  FieldReader fields(violations, "sharding", object);
  fields.Enum("strategy", kStrategies, &sharding->strategy);
  const std::string strategy = NameOf(kStrategies, sharding->strategy);
  const bool hybrid = sharding->strategy == Strategy::kHybridShard;
  sharding->hybrid_shard_degree = devices_per_node;
  fields.Integer("hybrid_shard_degree", 1, kMaxInt32, &sharding->hybrid_shard_degree);
  if (!hybrid && fields.Has("hybrid_shard_degree")) {
    fields.Violate("hybrid_shard_degree", "is read with strategy HYBRID_SHARD only; the strategy is " + strategy);
  }
  const bool may_reshard = hybrid || sharding->strategy == Strategy::kFullShard;
  sharding->reshard_after_forward = may_reshard;
  fields.Bool("reshard_after_forward", &sharding->reshard_after_forward);
  if (sharding->reshard_after_forward && !may_reshard) {
    fields.Violate("reshard_after_forward", "true does not go with strategy " + strategy +
                                                ", which keeps parameters gathered; use FULL_SHARD or HYBRID_SHARD, "
                                                "or leave it out");
  }
  fields.Bool("forward_prefetch", &sharding->forward_prefetch);
  fields.Enum("backward_prefetch", kBackwardPrefetches, &sharding->backward_prefetch);
  fields.Bool("limit_all_gathers", &sharding->limit_all_gathers);
  fields.Bool("sync_each_batch", &sharding->sync_each_batch);
  fields.Bool("cpu_offload", &sharding->cpu_offload);
  fields.RefuseOthers();
}

void ParseSources(Violations* violations, FieldReader* data, const std::string& name,
                  std::vector<DataSourceConfig>* sources) {
  const JsonValue* list = data->Get(name);
  if (list == nullptr) return;
  if (!list->is_array()) {
    data->Violate(name, std::string("a list of sources was expected, this is ") + list->type_name());
    return;
  }
  for (size_t i = 0; i < list->AsArray().size(); ++i) {
    FieldReader fields(violations, data->Path(name) + "[" + std::to_string(i) + "]", &list->AsArray()[i]);
    DataSourceConfig source;
    fields.String("path", &source.path);
    fields.Enum("format", kDataFormats, &source.format);
    if (source.path.empty()) fields.Violate("path", "is required");
    fields.RefuseOthers();
    sources->push_back(std::move(source));
  }
}

void ParseData(Violations* violations, const JsonValue* object, DataConfig* data) {
  FieldReader fields(violations, "data", object);
  ParseSources(violations, &fields, "train", &data->train);
  ParseSources(violations, &fields, "eval", &data->eval);
  int tokenizer_type = 0;
  FieldReader tokenizer(violations, "data.tokenizer", fields.Get("tokenizer"));
  tokenizer.Enum("type", kTokenizers, &tokenizer_type);
  tokenizer.RefuseOthers();
  fields.Integer("sequence_length", 1, kMaxInt32, &data->sequence_length);
  if (data->train.empty()) fields.Violate("train", "at least one source is required");
  fields.RefuseOthers();
}

void ParseTraining(Violations* violations, const JsonValue* object, TrainingConfig* training) {
  using EvalStrategy = TrainingConfig::EvalStrategy;
  FieldReader fields(violations, "training", object);
  fields.Integer("max_steps", 1, kMaxInt64, &training->max_steps);
  fields.Integer("per_device_train_batch_size", 1, kMaxInt32, &training->per_device_train_batch_size);
  training->per_device_eval_batch_size = training->per_device_train_batch_size;
  fields.Integer("per_device_eval_batch_size", 1, kMaxInt32, &training->per_device_eval_batch_size);
  fields.Integer("gradient_accumulation_steps", 1, kMaxInt32, &training->gradient_accumulation_steps);
  fields.Double("learning_rate", 0, true, kInfinity, false, &training->learning_rate);
  fields.Enum("lr_scheduler_type", kSchedules, &training->lr_schedule);
  fields.Integer("warmup_steps", 0, kMaxInt64, &training->warmup_steps);
  fields.Double("min_lr_ratio", 0, false, 1, false, &training->min_lr_ratio);
  fields.Enum("optim", kOptimizers, &training->optim);
  fields.Double("momentum", 0, false, 1, true, &training->momentum);
  if (training->optim != TrainingConfig::Optimizer::kSgd && fields.Has("momentum")) {
    fields.Violate("momentum", "is read with optim SGD only; the optimizer is " + NameOf(kOptimizers, training->optim));
  }
  fields.Double("weight_decay", 0, false, kInfinity, false, &training->weight_decay);
  fields.Double("adam_beta1", 0, false, 1, true, &training->adam_beta1);
  fields.Double("adam_beta2", 0, false, 1, true, &training->adam_beta2);
  fields.Double("adam_epsilon", 0, true, kInfinity, false, &training->adam_epsilon);
  fields.Double("max_grad_norm", 0, false, kInfinity, false, &training->max_grad_norm);
  fields.Enum("eval_strategy", kEvalStrategies, &training->eval_strategy);
  fields.Integer("eval_steps", 1, kMaxInt64, &training->eval_steps);
  fields.Integer("save_steps", 0, kMaxInt64, &training->save_steps);
  fields.Integer("logging_steps", 1, kMaxInt64, &training->logging_steps);
  fields.Integer("seed", 0, kMaxInt64, &training->seed);
  fields.String("output_dir", &training->output_dir);
  fields.String("resume_from_checkpoint", &training->resume_from_checkpoint);
  FieldReader checkpointing(violations, fields.Path("activation_checkpointing"),
                            fields.Get("activation_checkpointing"));
  checkpointing.Enum("mode", kCheckpointingModes, &training->activation_checkpointing.mode);
  checkpointing.Integer("every_n_layers", 1, kMaxInt32, &training->activation_checkpointing.every_n_layers);
  checkpointing.Bool("offload", &training->activation_checkpointing.offload);
  checkpointing.Integer("loading_horizon", 1, kMaxInt32, &training->activation_checkpointing.loading_horizon);
  if (training->activation_checkpointing.offload &&
      training->activation_checkpointing.mode == ActivationCheckpointingConfig::Mode::kNone) {
    checkpointing.Violate("offload", "moves the inputs of what runs again; set mode to FULL, ATTENTION or MLP");
  }
  fields.Bool("cuda_graph", &training->cuda_graph);
  checkpointing.RefuseOthers();
  if (!fields.Has("max_steps")) fields.Violate("max_steps", "is required");
  if (training->output_dir.empty()) fields.Violate("output_dir", "is required");
  if (training->max_steps > 0 && training->warmup_steps > training->max_steps) {
    fields.Violate("warmup_steps", std::to_string(training->warmup_steps) + " is more than max_steps, " +
                                       std::to_string(training->max_steps));
  }
  if (training->eval_strategy == EvalStrategy::kSteps && !fields.Has("eval_steps")) {
    fields.Violate("eval_steps", "is required with eval_strategy STEPS");
  }
  fields.RefuseOthers();
}

std::string Int64(int64_t value) { return std::to_string(value); }  // proto3 JSON writes int64 as a string

JsonValue SourcesToJson(const std::vector<DataSourceConfig>& sources) {
  JsonValue::Array list;
  for (const DataSourceConfig& source : sources) {
    list.push_back(JsonValue::Object{{"path", source.path}, {"format", NameOf(kDataFormats, source.format)}});
  }
  return list;
}

JsonValue PrecisionToJson(const PrecisionConfig& precision) {
  using Mode = LossScaleConfig::Mode;
  const LossScaleConfig& scale = precision.loss_scale;
  JsonValue loss_scale = JsonValue::Object{{"mode", NameOf(kLossScaleModes, scale.mode)}};
  if (scale.mode == Mode::kDynamic) {
    loss_scale.Set("init_scale", scale.init_scale);
    loss_scale.Set("growth_factor", scale.growth_factor);
    loss_scale.Set("backoff_factor", scale.backoff_factor);
    loss_scale.Set("growth_interval", Int64(scale.growth_interval));
    loss_scale.Set("min_scale", scale.min_scale);
  } else if (scale.mode == Mode::kStatic) {
    loss_scale.Set("scale", scale.scale);
  }
  if (scale.mode != Mode::kNone) loss_scale.Set("max_consecutive_skips", Int64(scale.max_consecutive_skips));
  JsonValue json = JsonValue::Object{{"policy", NameOf(kPolicies, precision.policy)},
                                     {"param_dtype", NameOf(kDtypes, precision.param_dtype)},
                                     {"reduce_dtype", NameOf(kDtypes, precision.reduce_dtype)},
                                     {"buffer_dtype", NameOf(kDtypes, precision.buffer_dtype)},
                                     {"loss_scale", std::move(loss_scale)}};
  if (precision.policy == Policy::kFP8) {
    json.Set("fp8", JsonValue::Object{{"format", NameOf(kFp8Formats, precision.fp8.format)},
                                      {"scaling", "DELAYED"},
                                      {"amax_history_len", precision.fp8.amax_history_len},
                                      {"amax_compute_algo", NameOf(kAmaxAlgos, precision.fp8.amax_compute_algo)},
                                      {"margin", precision.fp8.margin}});
  }
  return json;
}

JsonValue ShardingToJson(const ShardingConfig& sharding) {
  JsonValue json = JsonValue::Object{
      {"strategy", NameOf(kStrategies, sharding.strategy)},
      {"reshard_after_forward", sharding.reshard_after_forward},
      {"forward_prefetch", sharding.forward_prefetch},
      {"backward_prefetch", NameOf(kBackwardPrefetches, sharding.backward_prefetch)},
      {"limit_all_gathers", sharding.limit_all_gathers},
      {"sync_each_batch", sharding.sync_each_batch},
      {"cpu_offload", sharding.cpu_offload},
  };
  if (sharding.strategy == ShardingConfig::Strategy::kHybridShard)
    json.Set("hybrid_shard_degree", sharding.hybrid_shard_degree);
  return json;
}

JsonValue TrainingToJson(const TrainingConfig& training) {
  JsonValue json = JsonValue::Object{
      {"max_steps", Int64(training.max_steps)},
      {"per_device_train_batch_size", training.per_device_train_batch_size},
      {"per_device_eval_batch_size", training.per_device_eval_batch_size},
      {"gradient_accumulation_steps", training.gradient_accumulation_steps},
      {"learning_rate", training.learning_rate},
      {"lr_scheduler_type", NameOf(kSchedules, training.lr_schedule)},
      {"warmup_steps", Int64(training.warmup_steps)},
      {"min_lr_ratio", training.min_lr_ratio},
      {"optim", NameOf(kOptimizers, training.optim)},
      {"weight_decay", training.weight_decay},
      {"adam_beta1", training.adam_beta1},
      {"adam_beta2", training.adam_beta2},
      {"adam_epsilon", training.adam_epsilon},
      {"max_grad_norm", training.max_grad_norm},
      {"eval_strategy", NameOf(kEvalStrategies, training.eval_strategy)},
      {"save_steps", Int64(training.save_steps)},
      {"logging_steps", Int64(training.logging_steps)},
      {"seed", Int64(training.seed)},
      {"output_dir", training.output_dir},
      {"resume_from_checkpoint", training.resume_from_checkpoint},
      {"activation_checkpointing",
       JsonValue::Object{{"mode", NameOf(kCheckpointingModes, training.activation_checkpointing.mode)},
                         {"every_n_layers", training.activation_checkpointing.every_n_layers},
                         {"offload", training.activation_checkpointing.offload},
                         {"loading_horizon", training.activation_checkpointing.loading_horizon}}},
      {"cuda_graph", training.cuda_graph},
  };
  if (training.optim == TrainingConfig::Optimizer::kSgd) json.Set("momentum", training.momentum);
  if (training.eval_steps > 0) json.Set("eval_steps", Int64(training.eval_steps));
  return json;
}

}  // namespace

JobConfig ParseJob(const std::string& json_text) {
  JsonValue document;
  try {
    document = ParseJson(json_text);
  } catch (const JsonError& error) {
    throw TrainerError(EndCause::kBadConfig, std::string("the job file is not JSON: ") + error.what());
  }
  JobConfig job;
  Violations violations;
  FieldReader fields(&violations, "", &document);
  if (!document.is_object()) throw TrainerError(EndCause::kBadConfig, "the job file must hold one JSON object");
  fields.String("name", &job.name);
  ParseModel(&violations, fields.Get("model"), &job.model);
  ParsePrecision(&violations, fields.Get("precision"), &job.precision);
  ParseData(&violations, fields.Get("data"), &job.data);
  ParseTraining(&violations, fields.Get("training"), &job.training);
  FieldReader resources(&violations, "resources", fields.Get("resources"));
  resources.Enum("node_class", kDevices, &job.device);
  int64_t devices_per_node = 1;
  resources.Integer("devices_per_node", 1, kMaxInt32, &devices_per_node);
  ParseSharding(&violations, fields.Get("sharding"), devices_per_node, &job.sharding);
  // The controller's business: accepted as they are.
  for (const char* name : {"scheduling", "restart"}) fields.Get(name);
  if (fields.Has("workload")) fields.Violate("workload", "a job with a program of its own is not run by mp-trainer");
  fields.RefuseOthers();
  if (job.training.eval_strategy != TrainingConfig::EvalStrategy::kNo && job.data.eval.empty()) {
    violations.emplace_back("data.eval: at least one source is required when training.eval_strategy is not NO");
  }
  if (!violations.empty()) {
    std::string message = "the job file has " + std::to_string(violations.size()) + " error(s):";
    for (const std::string& violation : violations) message += "\n  " + violation;
    throw TrainerError(EndCause::kBadConfig, message);
  }
  return job;
}

std::string JobToJson(const JobConfig& job) {
  JsonValue model = JsonValue::Object{};
  if (job.model.config_path.empty()) {
    model.Set("config", job.model.hf_config);
  } else {
    model.Set("config_path", job.model.config_path);
  }
  model.Set("init_from", job.model.init_from);
  JsonValue data = JsonValue::Object{{"train", SourcesToJson(job.data.train)}};
  if (!job.data.eval.empty()) data.Set("eval", SourcesToJson(job.data.eval));
  data.Set("tokenizer", JsonValue::Object{{"type", "BYTE"}});
  data.Set("sequence_length", job.data.sequence_length);
  return JsonValue(JsonValue::Object{{"name", job.name},
                                     {"model", std::move(model)},
                                     {"precision", PrecisionToJson(job.precision)},
                                     {"sharding", ShardingToJson(job.sharding)},
                                     {"data", std::move(data)},
                                     {"training", TrainingToJson(job.training)}})
      .ToString();
}

}  // namespace mp::trainer
