// A linear layer of a model: its parameters' places in the stage, and whether it runs in FP8.
#pragma once

#include <string>
#include <vector>

#include "worker/trainer/config/job.h"
#include "worker/trainer/model/model.h"
#include "worker/trainer/precision/fp8/context.h"
#include "worker/trainer/precision/policy.h"

namespace mp::trainer {

class LinearLayer {
 public:
  // Appends "name.weight" (and "name.bias") to `parameters` and a line to `plan`. `fp8` null or a `never_fp8` that says
  // why keeps the layer out of FP8.
  LinearLayer(const std::string& name, int64_t in, int64_t out, bool bias, double init_std,
              const PrecisionConfig& precision, int64_t tokens, fp8::Context* fp8, const std::string& never_fp8,
              std::vector<ParameterSpec>* parameters, std::vector<LinearPlan>* plan);

  at::Tensor Forward(const at::Tensor& x, const ParameterList& parameters) const;
  const at::Tensor& weight(const ParameterList& parameters) const { return parameters[weight_]; }

 private:
  size_t weight_;
  bool has_bias_;
  fp8::LinearState* state_ = nullptr;  // the context's; null: not in FP8
};

}  // namespace mp::trainer
