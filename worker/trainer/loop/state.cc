#include "worker/trainer/loop/state.h"

#include <ATen/CPUGeneratorImpl.h>

#include <charconv>
#include <chrono>
#include <cstdio>

#include "worker/trainer/config/error.h"
#include "worker/trainer/hash/xxh64.h"

namespace mp::trainer {
namespace {

CheckpointGroup GroupOf(Collectives* collectives) {
  return {collectives->rank(), collectives->world_size(), [collectives] { collectives->Barrier(); },
          [collectives](const std::string& mine) { return collectives->AllGatherStrings(mine); }};
}

std::vector<TensorSlice> Slices(const TrainingState& state) {
  std::vector<TensorSlice> slices = state.model->MasterSlices("model/");
  for (const auto& [name, per_shard] : state.optimizer->state()) {
    for (auto& slice : state.model->SlicesOf(name + "/", per_shard)) slices.push_back(std::move(slice));
  }
  return slices;
}

uint64_t ParseHex(const std::string& text) {
  uint64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (result.ec != std::errc()) throw JsonError("a hexadecimal number was expected, this is " + text);
  return value;
}

ReplicatedState Collect(const TrainingState& state) {
  ReplicatedState replicated;
  const SamplerPosition sampler = state.loader->position();
  replicated.values =
      JsonValue::Object{{"step", state.progress->step},
                        {"skipped_steps", state.progress->skipped_steps},
                        {"tokens", state.progress->tokens},
                        {"applied_steps", state.optimizer->applied_steps().item<int64_t>()},
                        {"loss_scale", state.scaler->State()},
                        {"sampler", JsonValue::Object{{"epoch", sampler.epoch},
                                                      {"samples_consumed", sampler.samples_consumed},
                                                      {"seed", sampler.seed},
                                                      {"fingerprint", HashToHex(sampler.fingerprint)}}}};
  if (state.fp8 != nullptr) replicated.tensors = state.fp8->StateDict();
  const auto& generator = at::detail::getDefaultCPUGenerator();
  replicated.rank_tensors["cpu_generator"] = generator.get_state();
  return replicated;
}

void Restore(const TrainingState& state, const ReplicatedState& replicated) {
  try {
    const JsonValue& values = replicated.values;
    state.progress->step = values.At("step").AsInteger();
    state.progress->skipped_steps = values.At("skipped_steps").AsInteger();
    state.progress->tokens = values.At("tokens").AsInteger();
    state.optimizer->applied_steps().fill_(values.At("applied_steps").AsInteger());
    state.scaler->LoadState(values.At("loss_scale"));
    const JsonValue& sampler = values.At("sampler");
    state.loader->Seek({sampler.At("epoch").AsInteger(), sampler.At("samples_consumed").AsInteger(),
                        sampler.At("seed").AsInteger(), ParseHex(sampler.At("fingerprint").AsString())});
  } catch (const JsonError& error) {
    throw TrainerError(EndCause::kCheckpoint, std::string("the checkpoint's values are wrong: ") + error.what());
  }
  if (state.fp8 != nullptr) state.fp8->LoadStateDict(replicated.tensors);
  if (const auto rng = replicated.rank_tensors.find("cpu_generator"); rng != replicated.rank_tensors.end()) {
    auto generator = at::detail::getDefaultCPUGenerator();
    generator.set_state(rng->second);
  }
}

}  // namespace

bool SaveState(const TrainingState& state, const std::string& output_dir, int attempt, Collectives* collectives,
               Reporter* reporter) {
  const auto began = std::chrono::steady_clock::now();
  const int64_t step = state.progress->step;
  CheckpointInfo info;
  const auto permit = [&](const std::string& path) {
    std::string reason;
    const bool granted = reporter->RequestCheckpoint(step, path, &reason);
    if (!granted)
      std::fprintf(stderr, "checkpoint of step %lld is not permitted: %s\n", static_cast<long long>(step),
                   reason.c_str());
    return granted;
  };
  const std::vector<TensorSlice> slices = state.model->holds_first_copy() ? Slices(state) : std::vector<TensorSlice>{};
  if (!SaveCheckpoint(output_dir, step, attempt, slices, Collect(state), GroupOf(collectives), permit, &info))
    return false;
  if (collectives->rank() == 0) {
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - began;
    reporter->CheckpointSaved(step, info.path, info.bytes, seconds.count());
  }
  return true;
}

bool LoadState(const TrainingState& state, const std::string& output_dir, const std::string& resume_from,
               Collectives* collectives, Reporter* reporter) {
  if (resume_from == "none" || resume_from.empty()) return false;
  const bool latest = resume_from == "latest";
  // Rank 0's view of the folder is everybody's.
  JsonValue::Array listed;
  if (collectives->rank() == 0) {
    for (const std::string& path : latest ? ListCheckpoints(output_dir) : std::vector<std::string>{resume_from})
      listed.emplace_back(path);
  }
  const JsonValue candidates = ParseJson(collectives->AllGatherStrings(JsonValue(std::move(listed)).ToString())[0]);
  std::string problem;
  for (const JsonValue& candidate : candidates.AsArray()) {
    const std::string& path = candidate.AsString();
    try {
      std::vector<TensorSlice> slices = Slices(state);
      Restore(state, LoadCheckpoint(path, slices, GroupOf(collectives)));
      state.model->ParametersChanged();
      if (collectives->rank() == 0) reporter->Resumed(state.progress->step, path);
      return true;
    } catch (const TrainerError& error) {
      if (error.cause() != EndCause::kCheckpoint || !latest) throw;
      if (problem.empty()) problem = error.what();
      if (collectives->rank() == 0) reporter->CheckpointDamaged(path, error.what());
    }
  }
  if (!problem.empty()) {
    throw TrainerError(EndCause::kCheckpoint,
                       "no checkpoint in " + output_dir + " can be read; the newest: " + problem);
  }
  return false;
}

}  // namespace mp::trainer
