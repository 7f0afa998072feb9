#include "worker/trainer/precision/fp8/tensor_state.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

namespace mp::trainer::fp8 {
namespace {

// One column of a table out of everybody's field.
at::Tensor LayOut(const std::vector<TensorState*>& tensors, at::Tensor TensorState::*field, at::Device device) {
  std::vector<at::Tensor> values;
  values.reserve(tensors.size());
  for (const TensorState* state : tensors) values.push_back(state->*field);
  at::Tensor column = at::cat(values).to(device);
  const std::vector<at::Tensor> places = column.split(1);
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i]->*field = places[i];
  return column;
}

}  // namespace

TensorState::TensorState(at::Device device)
    : scale(at::ones({1}, at::TensorOptions().dtype(at::kFloat).device(device))),
      amax(at::zeros({1}, at::TensorOptions().dtype(at::kFloat).device(device))),
      step_scale(at::ones({1}, at::TensorOptions().dtype(at::kFloat).device(device))),
      step_amax(at::zeros({1}, at::TensorOptions().dtype(at::kFloat).device(device))),
      underflows(at::zeros({1}, at::TensorOptions().dtype(at::kLong).device(device))),
      overflows(at::zeros({1}, at::TensorOptions().dtype(at::kLong).device(device))) {}

StateTable::StateTable(const std::vector<TensorState*>& tensors, at::Device device)
    : scale_(LayOut(tensors, &TensorState::scale, device)),
      amax_(LayOut(tensors, &TensorState::amax, device)),
      step_scale_(LayOut(tensors, &TensorState::step_scale, device)),
      step_amax_(LayOut(tensors, &TensorState::step_amax, device)),
      underflows_(LayOut(tensors, &TensorState::underflows, device)),
      overflows_(LayOut(tensors, &TensorState::overflows, device)) {}

void StateTable::BeginStep() {
  step_scale_.copy_(scale_);
  step_amax_.zero_();
  underflows_.zero_();
  overflows_.zero_();
}

at::Tensor StateTable::Statistics() const {
  return at::stack({step_amax_.to(at::kDouble), step_scale_.to(at::kDouble), underflows_.to(at::kDouble),
                    overflows_.to(at::kDouble)});
}

}  // namespace mp::trainer::fp8
