#include "worker/trainer/model/linear_layer.h"

#include "worker/trainer/precision/fp8/linear.h"
#include "worker/trainer/precision/linear.h"

namespace mp::trainer {
namespace {

const char* TypeName(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::BFloat16:
      return "BF16";
    case c10::ScalarType::Half:
      return "FP16";
    default:
      return "FP32";
  }
}

}  // namespace

LinearLayer::LinearLayer(const std::string& name, int64_t in, int64_t out, bool bias, double init_std,
                         const PrecisionConfig& precision, int64_t tokens, fp8::Context* fp8,
                         const std::string& never_fp8, std::vector<ParameterSpec>* parameters,
                         std::vector<LinearPlan>* plan)
    : weight_(parameters->size()), has_bias_(bias) {
  parameters->push_back({name + ".weight", {out, in}, ParameterSpec::Init::kNormal, init_std, true});
  if (bias) parameters->push_back({name + ".bias", {out}, ParameterSpec::Init::kZeros, 0, false});
  LinearPlan line{name, TypeName(precision.param_dtype), ""};
  if (UsesFp8(precision) && fp8 != nullptr) {
    line.reason = never_fp8.empty() ? fp8::WhyNotEligible(out, in, tokens) : never_fp8;
    if (line.reason.empty()) {
      line.compute = "FP8";
      state_ = fp8->AddLinear(name);
    }
  }
  plan->push_back(std::move(line));
}

at::Tensor LinearLayer::Forward(const at::Tensor& x, const ParameterList& parameters) const {
  const at::Tensor bias = has_bias_ ? parameters[weight_ + 1] : at::Tensor();
  if (state_ != nullptr) return fp8::Fp8Linear(x, parameters[weight_], bias, state_);
  return Linear(x, parameters[weight_], bias);
}

}  // namespace mp::trainer
