#include "worker/trainer/loop/trainer.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <optional>

#include "worker/trainer/config/error.h"
#include "worker/trainer/data/loader.h"
#include "worker/trainer/loop/memory.h"
#include "worker/trainer/loop/state.h"
#include "worker/trainer/model/registry.h"
#include "worker/trainer/optim/gradients.h"
#include "worker/trainer/optim/optimizer.h"
#include "worker/trainer/optim/schedule.h"
#include "worker/trainer/precision/fp8/context.h"
#include "worker/trainer/precision/loss_scale.h"
#include "worker/trainer/precision/policy.h"
#include "worker/trainer/sharding/mesh.h"
#include "worker/trainer/sharding/sharded_model.h"

namespace mp::trainer {
namespace {

using Clock = std::chrono::steady_clock;

int64_t ValidLabels(const Batch& batch) { return batch.labels.ne(-100).sum().item<int64_t>(); }

std::unique_ptr<fp8::Context> MakeFp8Context(const PrecisionConfig& precision) {
  return UsesFp8(precision) ? std::make_unique<fp8::Context>(precision.fp8) : nullptr;
}

std::unique_ptr<EvalLoader> MakeEvalLoaderIfAsked(const JobConfig& job, const Collectives& collectives,
                                                  int64_t vocab_size) {
  if (job.training.eval_strategy == TrainingConfig::EvalStrategy::kNo) return nullptr;
  return MakeEvalLoader(job, collectives.rank(), collectives.world_size(), vocab_size);
}

// What this rank sent, by operation and element type: "wire_bytes_all_gather_BFloat16".
void AddWireBytes(const WireBytes& bytes, std::map<std::string, double>* metrics) {
  const auto add = [&](const std::string& operation, const std::map<c10::ScalarType, int64_t>& by_type) {
    for (const auto& [type, count] : by_type) {
      (*metrics)["wire_bytes_" + operation + "_" + c10::toString(type)] = static_cast<double>(count);
    }
  };
  add("all_gather", bytes.all_gather);
  add("reduce_scatter", bytes.reduce_scatter);
  add("all_reduce", bytes.all_reduce);
}

void CheckSequenceLength(const JobConfig& job, const Model& model) {
  if (job.data.sequence_length <= model.max_position_embeddings()) return;
  throw TrainerError(EndCause::kBadConfig, "data.sequence_length: " + std::to_string(job.data.sequence_length) +
                                               " is more than the model's max_position_embeddings, " +
                                               std::to_string(model.max_position_embeddings()));
}

}  // namespace

struct Trainer::Impl {
  Impl(const JobConfig& job_in, int attempt_in, std::string resume_from_in, Collectives* collectives_in,
       Reporter* reporter_in)
      : job(job_in),
        attempt(attempt_in),
        resume_from(std::move(resume_from_in)),
        collectives(collectives_in),
        reporter(reporter_in),
        fp8(MakeFp8Context(job.precision)),
        model(MakeModel(job.model, job.precision, job.training.activation_checkpointing,
                        job.training.per_device_train_batch_size * job.data.sequence_length, fp8.get())),
        loader(MakeTrainLoader(job, collectives->rank(), collectives->world_size(), model->vocab_size())),
        eval_loader(MakeEvalLoaderIfAsked(job, *collectives, model->vocab_size())),
        mesh(job.sharding, collectives),
        sharded(model.get(), {job.precision, job.sharding, job.training.gradient_accumulation_steps, job.training.seed},
                &mesh),
        optimizer(MakeOptimizer(job.training, sharded.shards())),
        scaler(job.precision.loss_scale) {
    CheckSequenceLength(job, *model);
  }

  bool IsFirstRank() const { return collectives->rank() == 0; }
  TrainingState State() { return {&progress, &sharded, optimizer.get(), &scaler, fp8.get(), loader.get()}; }
  bool IsEvalStep() const {
    return eval_loader != nullptr &&
           (progress.step % job.training.eval_steps == 0 || progress.step == job.training.max_steps);
  }
  bool IsSaveStep() const {
    return progress.step == job.training.max_steps ||
           (job.training.save_steps > 0 && progress.step % job.training.save_steps == 0);
  }

  // What one optimizer step leaves behind; tensors until a logging step reads them.
  struct StepResult {
    at::Tensor loss_sum;  // fp64 [2]: sum of token losses, count of valid labels, over all ranks once reduced
    GradientSummary gradients;
    double learning_rate = 0;
    at::Tensor scale;  // fp32 []: of this step
  };

  StepResult Step() {
    const auto& training = job.training;
    std::vector<Batch> batches;
    at::Tensor totals = at::zeros({2}, at::TensorOptions().dtype(at::kDouble));
    for (int64_t i = 0; i < training.gradient_accumulation_steps; ++i) {
      batches.push_back(loader->Next(&wait_seconds));
      totals[1].add_(ValidLabels(batches.back()));
    }
    // Losses are normalised by the tokens of all ranks and micro-batches, so their count comes first.
    collectives->AllReduce(totals, Collectives::Op::kSum);
    StepResult result;
    result.scale = scaler.scale().clone();
    const at::Tensor factor = (result.scale.to(at::kDouble) / totals[1].clamp_min(1.0)).to(at::kFloat);
    if (fp8) fp8->BeginStep();
    at::Tensor loss_sum = at::zeros({}, at::TensorOptions().dtype(at::kDouble));
    for (size_t i = 0; i < batches.size(); ++i) {
      const at::Tensor loss = sharded.Forward(batches[i]);
      loss_sum.add_(loss.detach().to(at::kDouble));
      if (fp8 && i + 1 == batches.size()) {
        fp8->UpdateForward([this](at::Tensor& amaxes) { collectives->AllReduce(amaxes, Collectives::Op::kMax); });
      }
      sharded.Backward(loss, factor, i + 1 == batches.size());
    }
    if (fp8) {
      fp8->UpdateBackward([this](at::Tensor& amaxes) { collectives->AllReduce(amaxes, Collectives::Op::kMax); });
    }
    result.loss_sum = totals;
    result.loss_sum[0] = loss_sum;
    result.gradients = SummariseGradients(sharded.shards(), result.scale, training.max_grad_norm, mesh.shard());
    result.learning_rate = LearningRate(training, optimizer->applied_steps().item<int64_t>());
    optimizer->Step(sharded.shards(), result.gradients);
    sharded.ParametersChanged();
    scaler.Update(result.gradients.found_inf);
    sharded.ClearGradients();
    return result;
  }

  // Reads what the step left. The loss of the other ranks comes in here.
  void Account(const StepResult& result) {
    const bool skipped = result.gradients.found_inf.item<float>() > 0;
    if (skipped) ++progress.skipped_steps;
    const auto tokens = result.loss_sum[1].item<double>();
    progress.tokens += static_cast<int64_t>(tokens);
    if (scaler.GivesUp()) {
      throw TrainerError(EndCause::kNonFinite,
                         "the gradients of " + std::to_string(job.precision.loss_scale.max_consecutive_skips) +
                             " steps in a row, the last of them step " + std::to_string(progress.step) +
                             ", were not finite, down to a loss scale of " +
                             std::to_string(result.scale.item<float>()) +
                             "; see the frames before, precision.loss_scale.min_scale and max_consecutive_skips");
    }
    if (skipped && !scaler.skips()) {
      throw TrainerError(EndCause::kNonFinite, "the gradient norm of step " + std::to_string(progress.step) + " is " +
                                                   std::to_string(result.gradients.norm.item<double>()) +
                                                   " and no loss scaling is on that could skip the step; see the "
                                                   "frames before, or set precision.loss_scale");
    }
    if (progress.step % job.training.logging_steps == 0 || progress.step == job.training.max_steps) Log(result);
  }

  void Log(const StepResult& result) {
    at::Tensor loss = result.loss_sum[0].clone();
    collectives->AllReduce(loss, Collectives::Op::kSum);
    last_loss = loss.item<double>() / std::max(1.0, result.loss_sum[1].item<double>());
    const auto now = Clock::now();
    const double seconds = std::chrono::duration<double>(now - frame_began).count();
    const auto steps = static_cast<double>(progress.step - frame_step);
    std::map<std::string, double> scalars = {
        {"loss", last_loss},
        {"learning_rate", result.learning_rate},
        {"grad_norm", result.gradients.norm.item<double>()},
        {"loss_scale", result.scale.item<float>()},
        {"skipped_steps", static_cast<double>(progress.skipped_steps)},
        {"tokens", static_cast<double>(progress.tokens)},
        {"tokens_per_second", static_cast<double>(progress.tokens - frame_tokens) / seconds},
        {"step_seconds", seconds / steps},
        {"data_wait_seconds", wait_seconds / steps},
        {"memory_bytes", static_cast<double>(ResidentBytes())},
        {"memory_peak_bytes", static_cast<double>(PeakResidentBytes())},
    };
    reporter->Frame(progress.step, scalars, fp8 ? fp8->Statistics() : std::vector<fp8::TensorStatistics>{});
    if (IsFirstRank()) {
      std::fprintf(stderr, "step %lld/%lld  loss %.4f  grad norm %.3f  lr %.3g  scale %.6g  %.0f tokens/s\n",
                   static_cast<long long>(progress.step), static_cast<long long>(job.training.max_steps), last_loss,
                   scalars["grad_norm"], scalars["learning_rate"], scalars["loss_scale"], scalars["tokens_per_second"]);
    }
    StartFrame();
  }

  void StartFrame() {
    frame_began = Clock::now();
    frame_step = progress.step;
    frame_tokens = progress.tokens;
    wait_seconds = 0;
  }

  void Evaluate() {
    const at::NoGradGuard no_grad;
    if (fp8) fp8->set_training(false);
    at::Tensor totals = at::zeros({2}, at::TensorOptions().dtype(at::kDouble));
    for (int64_t i = 0; i < eval_loader->batches(); ++i) {
      const Batch batch = eval_loader->Get(i);
      totals[0].add_(sharded.Forward(batch).to(at::kDouble));
      totals[1].add_(ValidLabels(batch));
    }
    if (fp8) fp8->set_training(true);
    collectives->AllReduce(totals, Collectives::Op::kSum);
    eval_loss = (totals[0] / totals[1].clamp_min(1.0)).item<double>();
    if (!IsFirstRank()) return;
    reporter->Evaluation(progress.step, {{"loss", *eval_loss}});
    std::fprintf(stderr, "step %lld  evaluation loss %.4f\n", static_cast<long long>(progress.step), *eval_loss);
  }

  void Run() {
    reporter->Started(collectives->world_size(), sharded.parameter_count());
    if (IsFirstRank()) reporter->PrecisionPlan(model->linear_plan());
    LoadState(State(), job.training.output_dir, resume_from, collectives, reporter);
    StartFrame();
    while (progress.step < job.training.max_steps) {
      step.store(++progress.step);
      Account(Step());
      const bool evaluates = IsEvalStep();
      if (evaluates) Evaluate();
      if (IsSaveStep() || SaveWasAsked()) {
        SaveState(State(), job.training.output_dir, attempt, collectives, reporter);
        StartFrame();
      } else if (evaluates) {
        StartFrame();
      }
    }
    if (IsFirstRank()) {
      std::map<std::string, double> metrics;
      metrics["loss"] = last_loss;
      if (eval_loss) metrics["eval_loss"] = *eval_loss;
      AddWireBytes(collectives->bytes(), &metrics);
      reporter->Finished(progress.step, metrics);
    }
  }

  // One rank's command is every rank's.
  bool SaveWasAsked() {
    if (collectives->world_size() == 1) return reporter->TakeSaveCommand();
    if (progress.step % job.training.logging_steps != 0) return false;
    at::Tensor asked =
        at::scalar_tensor(reporter->TakeSaveCommand() ? 1.0 : 0.0, at::TensorOptions().dtype(at::kFloat));
    collectives->AllReduce(asked, Collectives::Op::kMax);
    return asked.item<float>() > 0;
  }

  const JobConfig job;
  const int attempt;
  const std::string resume_from;
  Collectives* const collectives;
  Reporter* const reporter;
  std::unique_ptr<fp8::Context> fp8;
  std::unique_ptr<Model> model;
  std::unique_ptr<TrainLoader> loader;
  std::unique_ptr<EvalLoader> eval_loader;
  ShardingMesh mesh;
  ShardedModel sharded;
  std::unique_ptr<Optimizer> optimizer;
  LossScaler scaler;
  Progress progress;
  std::atomic<int64_t> step{0};

  Clock::time_point frame_began;
  int64_t frame_step = 0;
  int64_t frame_tokens = 0;
  double wait_seconds = 0;
  double last_loss = 0;
  std::optional<double> eval_loss;
};

Trainer::Trainer(const JobConfig& job, int attempt, std::string resume_from, Collectives* collectives,
                 Reporter* reporter)
    : impl_(std::make_unique<Impl>(job, attempt, std::move(resume_from), collectives, reporter)) {}

Trainer::~Trainer() = default;

void Trainer::Run() { impl_->Run(); }

int64_t Trainer::step() const { return impl_->step.load(); }

}  // namespace mp::trainer
