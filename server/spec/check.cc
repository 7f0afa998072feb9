#include "server/spec/check.h"

#include <algorithm>
#include <set>

#include "server/planner/llama.h"
#include "server/spec/spec.h"

namespace mp {
namespace {

bool IsNameCharacter(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

void CheckName(const v1::JobSpec& spec, Violations* violations) {
  SectionCheck check("", violations);
  const std::string& name = spec.name();
  if (!spec.has_name() || name.empty()) return check.Violate("name", "is required");
  const bool legal = name.size() <= 63 && IsNameCharacter(name.front()) && IsNameCharacter(name.back()) &&
                     std::all_of(name.begin(), name.end(), [](char c) { return IsNameCharacter(c) || c == '-'; });
  if (!legal) {
    check.Violate(
        "name",
        absl::StrCat("\"", name,
                     "\" must be 1 to 63 characters of a-z, 0-9 and -, starting and ending with a letter or digit"));
  }
}

void CheckLossScale(const v1::LossScaleSpec& scale, Violations* violations) {
  SectionCheck check("precision.loss_scale", violations);
  const bool dynamic = scale.mode() == v1::LossScaleSpec::DYNAMIC;
  const std::string mode = v1::LossScaleSpec::Mode_Name(scale.mode());
  const auto only_dynamic = [&](const std::string& name, bool is_set) {
    if (!dynamic && is_set) check.Violate(name, absl::StrCat("is read with mode DYNAMIC only; the mode is ", mode));
  };
  only_dynamic("init_scale", scale.has_init_scale());
  only_dynamic("growth_factor", scale.has_growth_factor());
  only_dynamic("backoff_factor", scale.has_backoff_factor());
  only_dynamic("growth_interval", scale.has_growth_interval());
  only_dynamic("min_scale", scale.has_min_scale());
  if (dynamic) {
    check.Number("init_scale", scale.init_scale(), scale.init_scale() > 0, "finite and greater than 0");
    check.Number("growth_factor", scale.growth_factor(), scale.growth_factor() > 1, "finite and greater than 1");
    check.Number("backoff_factor", scale.backoff_factor(), scale.backoff_factor() > 0 && scale.backoff_factor() < 1,
                 "between 0 and 1, both excluded");
    check.Range("growth_interval", scale.growth_interval(), 1);
    check.Number("min_scale", scale.min_scale(), scale.min_scale() >= 0 && scale.min_scale() <= scale.init_scale(),
                 "at least 0 (0: no floor) and at most init_scale");
  }
  if (scale.mode() == v1::LossScaleSpec::NONE) {
    if (scale.has_max_consecutive_skips())
      check.Violate("max_consecutive_skips", "is read with modes DYNAMIC and STATIC only; the mode is NONE");
  } else {
    check.Range("max_consecutive_skips", scale.max_consecutive_skips(), 0);
  }
  if (scale.mode() == v1::LossScaleSpec::STATIC) {
    check.Require("scale", scale.has_scale());
    if (scale.has_scale()) check.Number("scale", scale.scale(), scale.scale() > 0, "finite and greater than 0");
  } else if (scale.has_scale()) {
    check.Violate("scale", absl::StrCat("is read with mode STATIC only; the mode is ", mode));
  }
}

void CheckPrecision(const v1::JobSpec& spec, Violations* violations) {
  const v1::PrecisionSpec& precision = spec.precision();
  SectionCheck check("precision", violations);
  const auto policy = precision.policy();
  const bool fp8 = policy == v1::PrecisionSpec::FP8;
  const auto param = precision.param_dtype();
  const bool agrees =
      fp8 ? param != v1::Dtype::FP32 : v1::Dtype::Value_Name(param) == v1::PrecisionSpec::Policy_Name(policy);
  if (!agrees) {
    check.Violate("param_dtype", absl::StrCat(v1::Dtype::Value_Name(param), " does not go with policy ",
                                              v1::PrecisionSpec::Policy_Name(policy), "; it must be ",
                                              fp8 ? "BF16 or FP16" : v1::PrecisionSpec::Policy_Name(policy)));
  }
  CheckLossScale(precision.loss_scale(), violations);
  if (precision.has_fp8() && !fp8) {
    check.Violate("fp8",
                  absl::StrCat("is read with policy FP8 only; the policy is ", v1::PrecisionSpec::Policy_Name(policy)));
  }
  if (fp8) {
    SectionCheck recipe("precision.fp8", violations);
    recipe.Range("amax_history_len", precision.fp8().amax_history_len(), 1, 1024);
    recipe.Range("margin", precision.fp8().margin(), 0, 16);
    if (!ClassRunsPolicy(spec.resources().node_class(), policy)) {
      check.Violate("policy",
                    "FP8 needs FP8 tensor cores, which class P4 (A100) does not have; set resources.node_class to P5, "
                    "or the policy to BF16");
    }
  }
}

void CheckSharding(const v1::JobSpec& spec, Violations* violations) {
  const v1::ShardingSpec& sharding = spec.sharding();
  SectionCheck check("sharding", violations);
  const auto strategy = sharding.strategy();
  const std::string name = v1::ShardingSpec::Strategy_Name(strategy);
  const bool hybrid = strategy == v1::ShardingSpec::HYBRID_SHARD;
  if (hybrid) {
    check.Range("hybrid_shard_degree", sharding.hybrid_shard_degree(), 1);
    const int64_t ranks = int64_t{spec.resources().nodes()} * spec.resources().devices_per_node();
    if (sharding.hybrid_shard_degree() > 0 && ranks > 0 && ranks % sharding.hybrid_shard_degree() != 0) {
      check.Violate("hybrid_shard_degree",
                    absl::StrCat(sharding.hybrid_shard_degree(),
                                 " does not divide the number of ranks, resources.nodes x devices_per_node = ", ranks));
    }
  } else if (sharding.has_hybrid_shard_degree()) {
    check.Violate("hybrid_shard_degree",
                  absl::StrCat("is read with strategy HYBRID_SHARD only; the strategy is ", name));
  }
  if (sharding.reshard_after_forward() && !hybrid && strategy != v1::ShardingSpec::FULL_SHARD) {
    check.Violate("reshard_after_forward",
                  absl::StrCat("true does not go with strategy ", name,
                               ", which keeps parameters gathered; use FULL_SHARD or HYBRID_SHARD, or leave it out"));
  }
}

void CheckData(const v1::JobSpec& spec, Violations* violations) {
  SectionCheck check("data", violations);
  if (spec.data().train().empty()) check.Violate("train", "at least one source is required");
  for (int i = 0; i < spec.data().train_size(); ++i)
    check.FilePath(absl::StrCat("train[", i, "].path"), spec.data().train(i).path());
  for (int i = 0; i < spec.data().eval_size(); ++i)
    check.FilePath(absl::StrCat("eval[", i, "].path"), spec.data().eval(i).path());
  if (spec.training().eval_strategy() != v1::TrainingSpec::NO && spec.data().eval().empty()) {
    check.Violate("eval", "at least one source is required when training.eval_strategy is not NO");
  }
  check.Range("sequence_length", spec.data().sequence_length(), 1);
}

void CheckTraining(const v1::TrainingSpec& training, Violations* violations) {
  SectionCheck check("training", violations);
  check.Require("max_steps", training.has_max_steps());
  if (training.has_max_steps()) check.Range("max_steps", training.max_steps(), 1);
  check.Range("per_device_train_batch_size", training.per_device_train_batch_size(), 1);
  check.Range("per_device_eval_batch_size", training.per_device_eval_batch_size(), 1);
  check.Range("gradient_accumulation_steps", training.gradient_accumulation_steps(), 1);
  check.Number("learning_rate", training.learning_rate(), training.learning_rate() > 0, "finite and greater than 0");
  if (training.optim() == v1::TrainingSpec::SGD) {
    check.Number("momentum", training.momentum(), training.momentum() >= 0 && training.momentum() < 1,
                 "at least 0 and less than 1");
  } else if (training.has_momentum()) {
    check.Violate("momentum", absl::StrCat("is read with optim SGD only; the optimizer is ",
                                           v1::TrainingSpec::Optimizer_Name(training.optim())));
  }
  check.Range("activation_checkpointing.every_n_layers", training.activation_checkpointing().every_n_layers(), 1);
  check.Range("activation_checkpointing.loading_horizon", training.activation_checkpointing().loading_horizon(), 1);
  if (training.activation_checkpointing().offload() &&
      training.activation_checkpointing().mode() == v1::ActivationCheckpointingSpec::NONE) {
    check.Violate("activation_checkpointing.offload",
                  "moves the inputs of what runs again; set mode to FULL, ATTENTION or MLP");
  }
  check.Range("warmup_steps", training.warmup_steps(), 0);
  if (training.max_steps() > 0 && training.warmup_steps() > training.max_steps()) {
    check.Violate("warmup_steps",
                  absl::StrCat(training.warmup_steps(), " is more than max_steps, ", training.max_steps()));
  }
  check.Number("min_lr_ratio", training.min_lr_ratio(), training.min_lr_ratio() >= 0 && training.min_lr_ratio() <= 1,
               "0 to 1");
  check.Number("weight_decay", training.weight_decay(), training.weight_decay() >= 0, "finite and at least 0");
  check.Number("adam_beta1", training.adam_beta1(), training.adam_beta1() >= 0 && training.adam_beta1() < 1,
               "at least 0 and less than 1");
  check.Number("adam_beta2", training.adam_beta2(), training.adam_beta2() >= 0 && training.adam_beta2() < 1,
               "at least 0 and less than 1");
  check.Number("adam_epsilon", training.adam_epsilon(), training.adam_epsilon() > 0, "finite and greater than 0");
  check.Number("max_grad_norm", training.max_grad_norm(), training.max_grad_norm() >= 0,
               "finite and at least 0 (0: no clipping)");
  if (training.eval_strategy() == v1::TrainingSpec::STEPS) {
    check.Require("eval_steps", training.has_eval_steps());
  }
  if (training.has_eval_steps()) check.Range("eval_steps", training.eval_steps(), 1);
  check.Range("save_steps", training.save_steps(), 0);
  check.Range("logging_steps", training.logging_steps(), 1);
  check.Range("seed", training.seed(), 0);
  check.FilePath("output_dir", training.output_dir());
  const std::string& resume = training.resume_from_checkpoint();
  if (resume != "none" && resume != "latest") check.FilePath("resume_from_checkpoint", resume);
}

bool IsReservedVariable(const std::string& name) {
  static const std::set<std::string> reserved = {"RANK",       "WORLD_SIZE",  "LOCAL_RANK",  "LOCAL_WORLD_SIZE",
                                                 "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES"};
  return reserved.contains(name) || name.starts_with("LD_") || name.starts_with("MP_");
}

void CheckWorkload(const v1::JobSpec& spec, Violations* violations) {
  SectionCheck check("workload", violations);
  const auto& workload = spec.workload();
  if (workload.command().empty() || workload.command(0).empty())
    check.Violate("command", "at least the program is required");
  for (const auto& [name, value] : workload.env()) {
    const bool first = !name.empty() && (std::isalpha(static_cast<unsigned char>(name[0])) || name[0] == '_');
    const bool legal =
        first && std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) || c == '_'; });
    if (!legal) check.Violate("env." + name, "is no name of an environment variable");
    if (IsReservedVariable(name))
      check.Violate("env." + name, "is set by the worker (torchrun's names, MP_*) or not allowed (LD_*)");
  }
  SectionCheck whole("", violations);
  const auto exclude = [&](const char* name, bool is_set) {
    if (is_set) whole.Violate(name, "belongs to the built-in trainer and does not go with workload.command");
  };
  exclude("model", spec.has_model());
  exclude("precision", spec.has_precision());
  exclude("sharding", spec.has_sharding());
  exclude("data", spec.has_data());
  exclude("training", spec.has_training());
}

void CheckPlacement(const v1::JobSpec& spec, Violations* violations) {
  SectionCheck resources("resources", violations);
  resources.Range("nodes", spec.resources().nodes(), 1, 4096);
  resources.Range("devices_per_node", spec.resources().devices_per_node(), 1, 64);
  SectionCheck scheduling("scheduling", violations);
  if (spec.scheduling().queue() != "default") {
    scheduling.Violate(
        "queue", absl::StrCat("\"", spec.scheduling().queue(), "\" does not exist; the only queue is \"default\""));
  }
  if (spec.scheduling().priority() != 0)
    scheduling.Violate("priority", "priorities are not supported yet; it must be 0");
  if (spec.scheduling().time_limit().seconds() < 0 || spec.scheduling().time_limit().nanos() < 0) {
    scheduling.Violate("time_limit", "must not be negative; 0s is no limit");
  }
  for (const auto& [key, value] : spec.scheduling().labels()) {
    if (key.empty()) scheduling.Violate("labels", "a label needs a name");
  }
  SectionCheck("restart", violations).Range("max_attempts", spec.restart().max_attempts(), 1, 100);
}

}  // namespace

void CheckSpec(const v1::JobSpec& spec, Violations* violations) {
  CheckName(spec, violations);
  if (spec.has_workload()) {
    CheckWorkload(spec, violations);
  } else {
    CheckModelConfig(spec, violations);
    CheckPrecision(spec, violations);
    CheckSharding(spec, violations);
    CheckData(spec, violations);
    CheckTraining(spec.training(), violations);
  }
  CheckPlacement(spec, violations);
}

absl::StatusOr<v1::JobSpec> ResolveSpec(const v1::CreateJobRequest& request) {
  Violations violations;
  v1::JobSpec spec;
  if (request.has_spec() == !request.spec_document().empty()) {
    return InvalidSpec({{"spec", "exactly one of spec and spec_document is required"}});
  }
  if (request.has_spec()) {
    spec = request.spec();
  } else {
    ParseSpecDocument(request.spec_document(), &spec, &violations);
  }
  for (const std::string& assignment : request.overrides()) ApplyOverride(assignment, &spec, &violations);
  FillDefaults(&spec);
  Violations found;
  CheckSpec(spec, &found);
  // A field that could not be read is absent, so that the checks may call it missing as well: the first word counts.
  const auto reported = [&](const std::string& field) {
    return std::any_of(violations.begin(), violations.end(), [&](const FieldViolation& v) {
      return v.field == field || field.starts_with(v.field + ".") || v.field.starts_with(field + "[") ||
             v.field == "(document)";
    });
  };
  Violations added;
  for (FieldViolation& violation : found) {
    if (!reported(violation.field)) added.push_back(std::move(violation));
  }
  violations.insert(violations.end(), added.begin(), added.end());
  if (!violations.empty()) return InvalidSpec(violations);
  return spec;
}

}  // namespace mp
