#include "worker/trainer/precision/loss_scale.h"

#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>

namespace mp::trainer {
namespace {

double InitialScale(const LossScaleConfig& config) {
  switch (config.mode) {
    case LossScaleConfig::Mode::kDynamic:
      return config.init_scale;
    case LossScaleConfig::Mode::kStatic:
      return config.scale;
    case LossScaleConfig::Mode::kNone:
      break;
  }
  return 1.0;
}

}  // namespace

LossScaler::LossScaler(const LossScaleConfig& config, at::Device device)
    : config_(config),
      scale_(at::full({}, InitialScale(config), at::TensorOptions().dtype(at::kFloat).device(device))),
      growth_tracker_(at::full({}, 0, at::TensorOptions().dtype(at::kInt).device(device))),
      consecutive_skips_(at::full({}, 0, at::TensorOptions().dtype(at::kLong).device(device))) {}

void LossScaler::Update(const at::Tensor& found_inf) {
  consecutive_skips_.add_(1).mul_(found_inf.gt(0));
  if (config_.mode != LossScaleConfig::Mode::kDynamic) return;
  at::_amp_update_scale_(scale_, growth_tracker_, found_inf, config_.growth_factor, config_.backoff_factor,
                         config_.growth_interval);
  if (config_.min_scale > 0) scale_.clamp_min_(config_.min_scale);
}

bool LossScaler::GivesUp(int64_t consecutive_skips) const {
  return skips() && config_.max_consecutive_skips > 0 && consecutive_skips >= config_.max_consecutive_skips;
}

JsonValue LossScaler::State() const {
  return JsonValue::Object{{"mode", static_cast<int>(config_.mode)},
                           {"scale", static_cast<double>(scale_.item<float>())},
                           {"growth_tracker", growth_tracker_.item<int>()},
                           {"consecutive_skips", consecutive_skips_.item<int64_t>()}};
}

void LossScaler::LoadState(const JsonValue& state) {
  if (state.At("mode").AsInteger() != static_cast<int>(config_.mode)) return;
  scale_.fill_(state.At("scale").AsDouble());
  growth_tracker_.fill_(state.At("growth_tracker").AsInteger());
  const JsonValue* skips = state.Find("consecutive_skips");
  consecutive_skips_.fill_(skips == nullptr ? 0 : skips->AsInteger());
}

}  // namespace mp::trainer
