#include "worker/trainer/precision/fp8/context.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <optional>

#include "worker/trainer/config/error.h"
#include "worker/trainer/device/kernels.h"
#include "worker/trainer/precision/fp8/linear.h"
#include "worker/trainer/precision/fp8/recipe.h"

namespace mp::trainer::fp8 {
namespace {

Format BackwardFormat(const Fp8Config& config) {
  return config.format == Fp8Config::Format::kHybrid ? Format::kE5M2 : Format::kE4M3;
}

}  // namespace

struct Context::Impl {
  // The tensors of one direction. The history holds slots 1 and on; slot 0 is the table's amax.
  struct Direction {
    const char* name;
    std::vector<TensorState*> tensors;
    std::optional<StateTable> state;
    at::Tensor history;  // fp32 [L, n]

    int64_t count() const { return static_cast<int64_t>(tensors.size()); }

    // Once all linears are known, and again where more have come.
    void LayOut(int length, at::Device device) {
      if (state && state->size() == count()) return;
      if (tensors.empty()) return;
      state.emplace(tensors, device);
      history = at::zeros({length, count()}, at::TensorOptions().dtype(at::kFloat).device(device));
    }

    void BeginStep() {
      if (state) state->BeginStep();
      for (TensorState* tensor : tensors) tensor->elements = 0;
    }

    void Update(const Fp8Config& config, float fp8_max, const MaxReduce& reduce) {
      if (!state) return;
      at::Tensor& newest = state->amax();
      if (reduce) reduce(newest);
      if (UsesCpuLoops(newest)) {
        history[0].copy_(newest);
        UpdateScales(config, fp8_max, count(), history.mutable_data_ptr<float>(),
                     state->scale().mutable_data_ptr<float>());
      } else {
        UpdateScales(config, fp8_max, newest, history, state->scale());
      }
      newest.zero_();
    }

    void Save(std::map<std::string, at::Tensor>* saved) {
      if (!state) return;
      at::Tensor all = history.clone();
      all[0].copy_(state->amax());
      (*saved)[std::string("fp8.") + name + ".scale"] = state->scale().clone().cpu();
      (*saved)[std::string("fp8.") + name + ".amax_history"] = all.cpu();
    }

    void Load(int length, const std::map<std::string, at::Tensor>& saved) {
      if (!state) return;
      const at::Tensor& scales = Find(saved, "scale", {count()});
      const at::Tensor& all = Find(saved, "amax_history", {length, count()});
      state->scale().copy_(scales);
      history.copy_(all);
      state->amax().copy_(all[0]);
    }

    const at::Tensor& Find(const std::map<std::string, at::Tensor>& saved, const char* what,
                           at::IntArrayRef shape) const {
      const std::string key = std::string("fp8.") + name + "." + what;
      const auto it = saved.find(key);
      if (it == saved.end())
        throw TrainerError(EndCause::kCheckpoint, key + " is missing: the checkpoint was not trained in FP8");
      if (it->second.sizes() != shape || it->second.scalar_type() != at::kFloat) {
        throw TrainerError(EndCause::kCheckpoint, key + " has another shape than this model and recipe need");
      }
      return it->second;
    }
  };

  Impl(const Fp8Config& config_in, at::Device device_in) : config(config_in), device(device_in) {}

  void LayOut() {
    forward.LayOut(config.amax_history_len, device);
    backward.LayOut(config.amax_history_len, device);
  }

  Fp8Config config;
  at::Device device;
  CastMode mode;
  std::vector<std::unique_ptr<LinearState>> linears;
  Direction forward{"forward", {}, {}, {}};
  Direction backward{"backward", {}, {}, {}};
};

Context::Context(const Fp8Config& config, at::Device device) : impl_(std::make_unique<Impl>(config, device)) {}

Context::~Context() = default;

LinearState* Context::AddLinear(const std::string& name) {
  impl_->linears.push_back(
      std::make_unique<LinearState>(name, Format::kE4M3, BackwardFormat(impl_->config), &impl_->mode, impl_->device));
  LinearState* linear = impl_->linears.back().get();
  impl_->forward.tensors.push_back(&linear->input());
  impl_->forward.tensors.push_back(&linear->weight());
  impl_->backward.tensors.push_back(&linear->grad_output());
  return linear;
}

void Context::BeginStep() {
  impl_->LayOut();
  impl_->forward.BeginStep();
  impl_->backward.BeginStep();
}

void Context::UpdateForward(const MaxReduce& reduce) {
  impl_->forward.Update(impl_->config, MaxValue(Format::kE4M3), reduce);
}

void Context::UpdateBackward(const MaxReduce& reduce) {
  impl_->backward.Update(impl_->config, MaxValue(BackwardFormat(impl_->config)), reduce);
}

void Context::set_training(bool training) { impl_->mode.training = training; }

void Context::set_recomputing(bool recomputing) { impl_->mode.recomputing = recomputing; }

Context::Snapshot Context::TakeSnapshot() {
  Snapshot snapshot;
  if (impl_->linears.empty()) return snapshot;
  impl_->LayOut();
  snapshot.forward = impl_->forward.state->Statistics();
  snapshot.backward = impl_->backward.state->Statistics();
  for (const auto& direction : {&impl_->forward, &impl_->backward}) {
    for (const TensorState* tensor : direction->tensors) snapshot.elements.push_back(tensor->elements);
  }
  return snapshot;
}

std::vector<TensorStatistics> Context::Statistics(const Snapshot& snapshot) const {
  if (snapshot.elements.empty()) return {};
  const at::Tensor forward = snapshot.forward.cpu();
  const at::Tensor backward = snapshot.backward.cpu();
  const auto read = [&](const std::string& layer, TensorKind kind, const at::Tensor& values, int64_t column) {
    const double* value = values.const_data_ptr<double>() + column;
    const int64_t width = values.size(1);
    const size_t place = static_cast<size_t>(column + (kind == TensorKind::kGradOutput ? forward.size(1) : 0));
    const double elements = std::max(1.0, static_cast<double>(snapshot.elements[place]));
    return TensorStatistics{
        layer, kind, value[0], value[width], value[2 * width] / elements, value[3 * width] / elements};
  };
  std::vector<TensorStatistics> all;
  all.reserve(snapshot.elements.size());
  for (int64_t i = 0; i < backward.size(1); ++i) {
    const std::string& name = impl_->linears[static_cast<size_t>(i)]->name();
    all.push_back(read(name, TensorKind::kInput, forward, 2 * i));
    all.push_back(read(name, TensorKind::kWeight, forward, 2 * i + 1));
    all.push_back(read(name, TensorKind::kGradOutput, backward, i));
  }
  return all;
}

std::map<std::string, at::Tensor> Context::StateDict() {
  impl_->LayOut();
  std::map<std::string, at::Tensor> state;
  impl_->forward.Save(&state);
  impl_->backward.Save(&state);
  return state;
}

void Context::LoadStateDict(const std::map<std::string, at::Tensor>& state) {
  impl_->LayOut();
  impl_->forward.Load(impl_->config.amax_history_len, state);
  impl_->backward.Load(impl_->config.amax_history_len, state);
}

}  // namespace mp::trainer::fp8
