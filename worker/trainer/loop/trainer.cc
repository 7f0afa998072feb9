#include "worker/trainer/loop/trainer.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <optional>
#include <utility>

#include "worker/trainer/config/error.h"
#include "worker/trainer/data/loader.h"
#include "worker/trainer/loop/state.h"
#include "worker/trainer/loop/step_graph.h"
#include "worker/trainer/loop/step_metrics.h"
#include "worker/trainer/model/registry.h"
#include "worker/trainer/optim/gradients.h"
#include "worker/trainer/optim/optimizer.h"
#include "worker/trainer/precision/fp8/context.h"
#include "worker/trainer/precision/loss_scale.h"
#include "worker/trainer/precision/policy.h"
#include "worker/trainer/sharding/mesh.h"
#include "worker/trainer/sharding/sharded_model.h"

namespace mp::trainer {
namespace {

using Clock = std::chrono::steady_clock;

// fp64 [], where the batch is.
at::Tensor ValidLabels(const Batch& batch) { return batch.labels.ne(-100).sum().to(at::kDouble); }

std::unique_ptr<fp8::Context> MakeFp8Context(const PrecisionConfig& precision, const Device& device) {
  return UsesFp8(precision) ? std::make_unique<fp8::Context>(precision.fp8, device.place()) : nullptr;
}

std::unique_ptr<ActivationOffload> MakeOffloadIfAsked(const ActivationCheckpointingConfig& checkpointing,
                                                      Device* device) {
  return checkpointing.offload ? std::make_unique<ActivationOffload>(checkpointing.loading_horizon, device) : nullptr;
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
  Impl(const JobConfig& job_in, int attempt_in, std::string resume_from_in, Device* device_in,
       Collectives* collectives_in, Reporter* reporter_in, Whereabouts* whereabouts_in)
      : job(job_in),
        attempt(attempt_in),
        resume_from(std::move(resume_from_in)),
        device(device_in),
        collectives(collectives_in),
        reporter(reporter_in),
        whereabouts(At(whereabouts_in, "initialisation")),
        fp8(MakeFp8Context(job.precision, *device)),
        offload(MakeOffloadIfAsked(job.training.activation_checkpointing, device)),
        model(MakeModel(job.model, job.precision, job.training.activation_checkpointing,
                        job.training.per_device_train_batch_size * job.data.sequence_length, fp8.get(), offload.get())),
        loader(MakeTrainLoader(job, collectives->rank(), collectives->world_size(), model->vocab_size(),
                               device->wants_pinned_memory())),
        eval_loader(MakeEvalLoaderIfAsked(job, *collectives, model->vocab_size())),
        mesh(job.sharding, collectives),
        sharded(
            model.get(),
            {job.precision, job.sharding, job.training.gradient_accumulation_steps, job.training.seed, device->place()},
            &mesh),
        optimizer(MakeOptimizer(job.training, sharded.shards())),
        scaler(job.precision.loss_scale, device->place()),
        metrics(collectives_in, device->place()) {
    CheckSequenceLength(job, *model);
    model->MoveBuffersTo(device->place());
    if (job.training.cuda_graph) graph.emplace(device, WhyNoGraph());
  }

  static Whereabouts* At(Whereabouts* whereabouts, const char* phase) {
    whereabouts->phase.store(phase);
    return whereabouts;
  }
  void At(const char* phase) { At(whereabouts, phase); }
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

  // Empty where a step can be recorded.
  std::string WhyNoGraph() const {
    if (device->place().is_cpu()) return "a CPU has none";
    if (job.sharding.cpu_offload) return "sharding.cpu_offload makes each step wait for the host";
    if (offload) return "training.activation_checkpointing.offload allocates host memory in each step";
    return "";
  }

  at::TensorOptions Doubles() const { return at::TensorOptions().dtype(at::kDouble).device(device->place()); }

  Batch OnDevice(const Batch& host) {
    return {device->StartUpload(host.input_ids)->Get(), device->StartUpload(host.labels)->Get()};
  }

  StepResult Step() {
    At("data");
    std::vector<Batch> batches;
    for (int64_t i = 0; i < job.training.gradient_accumulation_steps; ++i) {
      batches.push_back(OnDevice(loader->Next(&wait_seconds)));
    }
    device->ForbidWaits(!job.sharding.cpu_offload);
    StepResult result = graph ? RunGraph(batches) : Compute(batches);
    device->ForbidWaits(false);
    return result;
  }

  StepResult RunGraph(const std::vector<Batch>& batches) {
    StepResult result = graph->Run(
        batches, [this](const std::vector<Batch>& inputs) { return Compute(inputs); }, [this] { sharded.Abandon(); });
    collectives->MarkProgress();
    return result;
  }

  // The step on the device. Nothing in it waits for the device (but with offloading to the host), and what it does
  // depends on shapes alone: it can be recorded.
  StepResult Compute(const std::vector<Batch>& batches) {
    // Losses are normalised by the tokens of all ranks and micro-batches, so their count comes first.
    at::Tensor tokens = at::zeros({}, Doubles());
    for (const Batch& batch : batches) tokens.add_(ValidLabels(batch));
    collectives->AllReduce(tokens, Collectives::Op::kSum);
    StepResult result;
    result.tokens = tokens;
    result.scale = scaler.scale().clone();
    const at::Tensor factor = (result.scale.to(at::kDouble) / tokens.clamp_min(1.0)).to(at::kFloat);
    if (fp8) fp8->BeginStep();
    result.loss_sum = at::zeros({}, Doubles());
    for (size_t i = 0; i < batches.size(); ++i) {
      At("forward");
      const at::Tensor loss = sharded.Forward(batches[i]);
      result.loss_sum.add_(loss.detach().to(at::kDouble));
      if (fp8 && i + 1 == batches.size()) {
        fp8->UpdateForward([this](at::Tensor& amaxes) { collectives->AllReduce(amaxes, Collectives::Op::kMax); });
      }
      At("backward");
      sharded.Backward(loss, factor, i + 1 == batches.size());
    }
    if (fp8) {
      fp8->UpdateBackward([this](at::Tensor& amaxes) { collectives->AllReduce(amaxes, Collectives::Op::kMax); });
    }
    At("optimizer");
    result.gradients = SummariseGradients(sharded.shards(), result.scale, job.training.max_grad_norm, mesh.shard());
    optimizer->Step(sharded.shards(), result.gradients);
    sharded.ParametersChanged();
    scaler.Update(result.gradients.found_inf.to(device->place()));
    sharded.ClearGradients();
    result.learning_rate = optimizer->learning_rate();
    result.consecutive_skips = scaler.consecutive_skips();
    return result;
  }

  bool IsLoggingStep() const {
    return progress.step % job.training.logging_steps == 0 || progress.step == job.training.max_steps;
  }

  void Record(const StepResult& result) {
    metrics.Count(progress.step, result);
    if (!IsLoggingStep()) return;
    metrics.Record(progress.step, result);
    recorded_at = Clock::now();
    recorded_wait_seconds = std::exchange(wait_seconds, 0);
    if (fp8) fp8_snapshot = fp8->TakeSnapshot();
  }

  // Reports the frame that waits, if any.
  void Report() {
    if (!metrics.has_frame()) return;
    const StepMetrics::Frame frame = metrics.TakeFrame();
    last_loss = frame.loss;
    const std::vector<fp8::TensorStatistics> fp8_statistics =
        fp8 ? fp8->Statistics(fp8_snapshot) : std::vector<fp8::TensorStatistics>{};
    const Device::Memory memory = device->memory();
    const double seconds = std::chrono::duration<double>(recorded_at - frame_began).count();
    const auto steps = static_cast<double>(std::max<int64_t>(1, frame.step - frame_step));
    const std::map<std::string, double> scalars = {
        {"loss", frame.loss},
        {"learning_rate", frame.learning_rate},
        {"grad_norm", frame.grad_norm},
        {"loss_scale", frame.loss_scale},
        {"skipped_steps", static_cast<double>(frame.totals.skipped_steps)},
        {"tokens", static_cast<double>(frame.totals.tokens)},
        {"tokens_per_second", static_cast<double>(frame.totals.tokens - frame_tokens) / seconds},
        {"step_seconds", seconds / steps},
        {"data_wait_seconds", recorded_wait_seconds / steps},
        {"memory_bytes", static_cast<double>(memory.held)},
        {"memory_peak_bytes", static_cast<double>(memory.peak)},
    };
    reporter->Frame(frame.step, scalars, fp8_statistics);
    if (IsFirstRank()) {
      std::fprintf(stderr, "step %lld/%lld  loss %.4f  grad norm %.3f  lr %.3g  scale %.6g  %.0f tokens/s\n",
                   static_cast<long long>(frame.step), static_cast<long long>(job.training.max_steps), frame.loss,
                   frame.grad_norm, frame.learning_rate, frame.loss_scale, scalars.at("tokens_per_second"));
    }
    frame_began = recorded_at;
    frame_step = frame.step;
    frame_tokens = frame.totals.tokens;
    RefuseNonFinite(frame);
  }

  void RefuseNonFinite(const StepMetrics::Frame& frame) {
    if (scaler.GivesUp(frame.consecutive_skips)) {
      whereabouts->step.store(frame.step);
      throw TrainerError(EndCause::kNonFinite,
                         "the gradients of " + std::to_string(frame.consecutive_skips) +
                             " steps in a row, the last of them step " + std::to_string(frame.step) +
                             ", were not finite, down to a loss scale of " + std::to_string(frame.loss_scale) +
                             "; see the frames before, precision.loss_scale.min_scale and max_consecutive_skips");
    }
    if (frame.non_finite_step > 0 && !scaler.skips()) {
      whereabouts->step.store(frame.non_finite_step);
      throw TrainerError(EndCause::kNonFinite,
                         "the gradients of step " + std::to_string(frame.non_finite_step) +
                             " are not finite and no loss scaling is on that could skip the step; see the frames "
                             "before, or set precision.loss_scale");
    }
  }

  // After what is no part of a step.
  void StartFrame() {
    frame_began = Clock::now();
    frame_step = progress.step;
    frame_tokens = metrics.totals().tokens;
    wait_seconds = 0;
  }

  void Evaluate() {
    At("evaluation");
    const at::NoGradGuard no_grad;
    if (fp8) fp8->set_training(false);
    at::Tensor totals = at::zeros({2}, Doubles());
    for (int64_t i = 0; i < eval_loader->batches(); ++i) {
      const Batch batch = OnDevice(eval_loader->Get(i));
      totals[0].add_(sharded.Forward(batch).to(at::kDouble));
      totals[1].add_(ValidLabels(batch));
    }
    if (fp8) fp8->set_training(true);
    collectives->AllReduce(totals, Collectives::Op::kSum);
    totals = totals.cpu();
    eval_loss = totals[0].item<double>() / std::max(1.0, totals[1].item<double>());
    if (!IsFirstRank()) return;
    reporter->Evaluation(progress.step, {{"loss", *eval_loss}});
    std::fprintf(stderr, "step %lld  evaluation loss %.4f\n", static_cast<long long>(progress.step), *eval_loss);
  }

  void OneStep() {
    whereabouts->step.store(++progress.step);
    const StepResult result = Step();
    Report();  // of the step before: its values are there by now
    Record(result);
    const bool evaluates = IsEvalStep();
    const bool saves = IsSaveStep() || SaveWasAsked();
    if (!evaluates && !saves && progress.step < job.training.max_steps) return;
    Report();
    if (evaluates) Evaluate();
    if (saves) Save();
    StartFrame();
  }

  void Save() {
    At("checkpoint");
    const StepMetrics::Totals totals = metrics.totals();
    progress.skipped_steps = totals.skipped_steps;
    progress.tokens = totals.tokens;
    SaveState(State(), job.training.output_dir, attempt, collectives, reporter);
  }

  void Run() {
    reporter->Started(collectives->world_size(), sharded.parameter_count());
    if (IsFirstRank()) reporter->PrecisionPlan(model->linear_plan());
    At("resume");
    LoadState(State(), job.training.output_dir, resume_from, collectives, reporter);
    metrics.set_totals({progress.skipped_steps, progress.tokens});
    StartFrame();
    try {
      while (progress.step < job.training.max_steps) OneStep();
    } catch (const TrainerError& error) {
      // What the step before left is known; a lost peer takes nothing of it away.
      if (error.cause() == EndCause::kPeerLost) Report();
      throw;
    }
    if (IsFirstRank()) {
      std::map<std::string, double> summary;
      summary["loss"] = last_loss;
      if (eval_loss) summary["eval_loss"] = *eval_loss;
      AddWireBytes(collectives->bytes(), &summary);
      reporter->Finished(progress.step, summary);
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
  Device* const device;
  Collectives* const collectives;
  Reporter* const reporter;
  Whereabouts* const whereabouts;
  std::unique_ptr<fp8::Context> fp8;
  std::unique_ptr<ActivationOffload> offload;
  std::unique_ptr<Model> model;
  std::unique_ptr<TrainLoader> loader;
  std::unique_ptr<EvalLoader> eval_loader;
  ShardingMesh mesh;
  ShardedModel sharded;
  std::unique_ptr<Optimizer> optimizer;
  LossScaler scaler;
  StepMetrics metrics;
  std::optional<StepGraph> graph;
  Progress progress;

  Clock::time_point frame_began;  // the step before the present frame's first one ended
  int64_t frame_step = 0;
  int64_t frame_tokens = 0;
  double wait_seconds = 0;
  // Of the frame that waits.
  Clock::time_point recorded_at;
  double recorded_wait_seconds = 0;
  fp8::Context::Snapshot fp8_snapshot;
  double last_loss = 0;
  std::optional<double> eval_loss;
};

Trainer::Trainer(const JobConfig& job, int attempt, std::string resume_from, Device* device, Collectives* collectives,
                 Reporter* reporter, Whereabouts* whereabouts)
    : impl_(std::make_unique<Impl>(job, attempt, std::move(resume_from), device, collectives, reporter, whereabouts)) {}

Trainer::~Trainer() = default;

void Trainer::Run() { impl_->Run(); }

}  // namespace mp::trainer
