#include "worker/trainer/precision/fp8/context.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "worker/trainer/config/error.h"
#include "worker/trainer/precision/fp8/linear.h"
#include "worker/trainer/precision/fp8/recipe.h"

namespace mp::trainer::fp8 {
namespace {

Format BackwardFormat(const Fp8Config& config) {
  return config.format == Fp8Config::Format::kHybrid ? Format::kE5M2 : Format::kE4M3;
}

void ResetStatistics(TensorState* state) {
  state->step_scale = state->scale;
  state->step_amax = 0;
  state->elements = 0;
  state->underflows = 0;
  state->overflows = 0;
}

TensorStatistics StatisticsOf(const std::string& layer, TensorKind kind, const TensorState& state) {
  const double elements = state.elements > 0 ? static_cast<double>(state.elements) : 1.0;
  return {layer,
          kind,
          state.step_amax,
          state.step_scale,
          static_cast<double>(state.underflows) / elements,
          static_cast<double>(state.overflows) / elements};
}

}  // namespace

struct Context::Impl {
  // The tensors of one direction. Histories hold slots 1 and on; slot 0 is the tensors' own `amax`.
  struct Direction {
    const char* name;
    std::vector<TensorState*> tensors;
    at::Tensor history;  // fp32 [L, n], made when the first tensor count is asked for

    int64_t count() const { return static_cast<int64_t>(tensors.size()); }

    at::Tensor& History(int length) {
      if (!history.defined() || history.size(1) != count()) {
        history = at::zeros({length, count()}, at::TensorOptions().dtype(at::kFloat));
      }
      return history;
    }

    void Update(const Fp8Config& config, float fp8_max, const MaxReduce& reduce) {
      if (tensors.empty()) return;
      at::Tensor& all = History(config.amax_history_len);
      at::Tensor newest = at::empty({count()}, at::TensorOptions().dtype(at::kFloat));
      at::Tensor scales = at::empty({count()}, at::TensorOptions().dtype(at::kFloat));
      for (int64_t t = 0; t < count(); ++t) {
        newest.mutable_data_ptr<float>()[t] = tensors[static_cast<size_t>(t)]->amax;
        scales.mutable_data_ptr<float>()[t] = tensors[static_cast<size_t>(t)]->scale;
      }
      if (reduce) reduce(newest);
      all[0].copy_(newest);
      UpdateScales(config, fp8_max, count(), all.mutable_data_ptr<float>(), scales.mutable_data_ptr<float>());
      for (int64_t t = 0; t < count(); ++t) {
        tensors[static_cast<size_t>(t)]->scale = scales.const_data_ptr<float>()[t];
        tensors[static_cast<size_t>(t)]->amax = 0;
      }
    }

    void Save(int length, std::map<std::string, at::Tensor>* state) {
      at::Tensor scales = at::empty({count()}, at::TensorOptions().dtype(at::kFloat));
      at::Tensor all = History(length).clone();
      for (int64_t t = 0; t < count(); ++t) {
        scales.mutable_data_ptr<float>()[t] = tensors[static_cast<size_t>(t)]->scale;
        all.mutable_data_ptr<float>()[t] = tensors[static_cast<size_t>(t)]->amax;
      }
      (*state)[std::string("fp8.") + name + ".scale"] = scales;
      (*state)[std::string("fp8.") + name + ".amax_history"] = all;
    }

    void Load(int length, const std::map<std::string, at::Tensor>& state) {
      const at::Tensor& scales = Find(state, "scale", {count()});
      history = Find(state, "amax_history", {length, count()}).clone();
      for (int64_t t = 0; t < count(); ++t) {
        tensors[static_cast<size_t>(t)]->scale = scales.const_data_ptr<float>()[t];
        tensors[static_cast<size_t>(t)]->amax = history.const_data_ptr<float>()[t];
      }
    }

    const at::Tensor& Find(const std::map<std::string, at::Tensor>& state, const char* what,
                           at::IntArrayRef shape) const {
      const std::string key = std::string("fp8.") + name + "." + what;
      const auto it = state.find(key);
      if (it == state.end())
        throw TrainerError(EndCause::kCheckpoint, key + " is missing: the checkpoint was not trained in FP8");
      if (it->second.sizes() != shape || it->second.scalar_type() != at::kFloat) {
        throw TrainerError(EndCause::kCheckpoint, key + " has another shape than this model and recipe need");
      }
      return it->second;
    }
  };

  explicit Impl(const Fp8Config& config_in) : config(config_in) {}

  Fp8Config config;
  CastMode mode;
  std::vector<std::unique_ptr<LinearState>> linears;
  Direction forward{"forward", {}, {}};
  Direction backward{"backward", {}, {}};
};

Context::Context(const Fp8Config& config) : impl_(std::make_unique<Impl>(config)) {}

Context::~Context() = default;

LinearState* Context::AddLinear(const std::string& name) {
  impl_->linears.push_back(
      std::make_unique<LinearState>(name, Format::kE4M3, BackwardFormat(impl_->config), &impl_->mode));
  LinearState* linear = impl_->linears.back().get();
  impl_->forward.tensors.push_back(&linear->input());
  impl_->forward.tensors.push_back(&linear->weight());
  impl_->backward.tensors.push_back(&linear->grad_output());
  return linear;
}

void Context::BeginStep() {
  for (const auto& direction : {&impl_->forward, &impl_->backward}) {
    for (TensorState* state : direction->tensors) ResetStatistics(state);
  }
}

void Context::UpdateForward(const MaxReduce& reduce) {
  impl_->forward.Update(impl_->config, MaxValue(Format::kE4M3), reduce);
}

void Context::UpdateBackward(const MaxReduce& reduce) {
  impl_->backward.Update(impl_->config, MaxValue(BackwardFormat(impl_->config)), reduce);
}

void Context::set_training(bool training) { impl_->mode.training = training; }

void Context::set_recomputing(bool recomputing) { impl_->mode.recomputing = recomputing; }

std::vector<TensorStatistics> Context::Statistics() const {
  std::vector<TensorStatistics> all;
  all.reserve(3 * impl_->linears.size());
  for (const auto& linear : impl_->linears) {
    all.push_back(StatisticsOf(linear->name(), TensorKind::kInput, linear->input()));
    all.push_back(StatisticsOf(linear->name(), TensorKind::kWeight, linear->weight()));
    all.push_back(StatisticsOf(linear->name(), TensorKind::kGradOutput, linear->grad_output()));
  }
  return all;
}

std::map<std::string, at::Tensor> Context::StateDict() const {
  std::map<std::string, at::Tensor> state;
  impl_->forward.Save(impl_->config.amax_history_len, &state);
  impl_->backward.Save(impl_->config.amax_history_len, &state);
  return state;
}

void Context::LoadStateDict(const std::map<std::string, at::Tensor>& state) {
  impl_->forward.Load(impl_->config.amax_history_len, state);
  impl_->backward.Load(impl_->config.amax_history_len, state);
}

}  // namespace mp::trainer::fp8
