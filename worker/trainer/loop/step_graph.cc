#include "worker/trainer/loop/step_graph.h"

#include <c10/util/Exception.h>

#include <cstdio>

namespace mp::trainer {
namespace {

// The graph writes into the same tensors in each step; what was read from them must not change under the reader.
StepResult Copy(const StepResult& result) {
  StepResult copy;
  copy.loss_sum = result.loss_sum.clone();
  copy.tokens = result.tokens.clone();
  copy.gradients = {result.gradients.found_inf.clone(), result.gradients.norm.clone(), result.gradients.factor.clone()};
  copy.learning_rate = result.learning_rate.clone();
  copy.scale = result.scale.clone();
  copy.consecutive_skips = result.consecutive_skips.clone();
  return copy;
}

}  // namespace

StepGraph::StepGraph(Device* device, const std::string& why_not) : device_(device) {
  if (!why_not.empty()) GiveUp(why_not);
}

StepResult StepGraph::Run(const std::vector<Batch>& batches, const Compute& compute,
                          const std::function<void()>& abandon) {
  if (gave_up_) return compute(batches);
  if (graph_ == nullptr) {
    if (++steps_ <= kStepsBefore) return compute(batches);
    Record(batches, compute, abandon);
    if (gave_up_) return compute(batches);
  }
  for (size_t i = 0; i < batches.size(); ++i) {
    inputs_[i].input_ids.copy_(batches[i].input_ids);
    inputs_[i].labels.copy_(batches[i].labels);
  }
  graph_->Replay();
  return Copy(result_);
}

void StepGraph::Record(const std::vector<Batch>& batches, const Compute& compute,
                       const std::function<void()>& abandon) {
  for (const Batch& batch : batches) inputs_.push_back({batch.input_ids.clone(), batch.labels.clone()});
  try {
    graph_ = device_->Capture([&] { result_ = compute(inputs_); });
    std::fputs("training.cuda_graph: the step is recorded and launched as one graph from now on\n", stderr);
  } catch (const c10::Error& error) {
    GiveUp(error.what_without_backtrace());
    result_ = {};
    inputs_.clear();
    abandon();
  }
}

void StepGraph::GiveUp(const std::string& why) {
  gave_up_ = true;
  std::fprintf(stderr, "training.cuda_graph: steps are launched operation by operation: %s\n", why.c_str());
}

}  // namespace mp::trainer
