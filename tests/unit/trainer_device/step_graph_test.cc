#include "worker/trainer/loop/step_graph.h"

#include <gtest/gtest.h>

#include "tests/unit/trainer_device/fake_device.h"

namespace mp::trainer {
namespace {

class StepGraphTest : public testing::Test {
 protected:
  // Sums the ids; `computed` counts runs of the function, recordings included.
  StepResult Compute(const std::vector<Batch>& batches) {
    ++computed_;
    StepResult result;
    result.loss_sum = at::zeros({}, at::kDouble);
    for (const Batch& batch : batches) result.loss_sum.add_(batch.input_ids.sum());
    result.tokens = at::ones({}, at::kDouble);
    result.gradients = {at::zeros({}), at::ones({}, at::kDouble), at::ones({})};
    result.learning_rate = at::ones({}, at::kDouble);
    result.scale = at::ones({});
    result.consecutive_skips = at::zeros({}, at::kLong);
    // As a graph does: from the same inputs into the same outputs, without this function.
    device_.on_replay = [inputs = batches[0].input_ids, sum = result.loss_sum] { sum.copy_(inputs.sum()); };
    return result;
  }

  double Step(StepGraph* graph, int64_t id) {
    const at::Tensor ids = at::full({2, 3}, id, at::kLong);
    const StepResult result = graph->Run(
        {{ids, ids}}, [this](const std::vector<Batch>& b) { return Compute(b); }, [this] { ++abandoned_; });
    return result.loss_sum.item<double>();
  }

  FakeDevice device_;
  int computed_ = 0;
  int abandoned_ = 0;
};

TEST_F(StepGraphTest, EachStepSeesItsOwnBatchBeforeAndAfterRecording) {
  StepGraph graph(&device_, "");
  for (int64_t step = 1; step <= 8; ++step) EXPECT_EQ(Step(&graph, step), 6.0 * static_cast<double>(step));
  EXPECT_EQ(device_.captures, 1);
  EXPECT_EQ(computed_, 4);  // three steps as they are, one recording
}

TEST_F(StepGraphTest, ResultsOfAStepAreNotThoseOfTheNext) {
  StepGraph graph(&device_, "");
  for (int64_t step = 1; step <= 4; ++step) Step(&graph, step);
  const at::Tensor ids = at::full({2, 3}, 5, at::kLong);
  const auto compute = [this](const std::vector<Batch>& b) { return Compute(b); };
  const StepResult kept = graph.Run({{ids, ids}}, compute, [] {});
  Step(&graph, 6);
  EXPECT_EQ(kept.loss_sum.item<double>(), 30.0);
}

TEST_F(StepGraphTest, WhatCannotBeRecordedRunsAsBefore) {
  device_.refuses = true;
  StepGraph graph(&device_, "");
  for (int64_t step = 1; step <= 6; ++step) EXPECT_EQ(Step(&graph, step), 6.0 * static_cast<double>(step));
  EXPECT_EQ(device_.captures, 1);
  EXPECT_EQ(abandoned_, 1);
}

TEST_F(StepGraphTest, AReasonKnownBeforehandIsNeverTried) {
  StepGraph graph(&device_, "a reason");
  for (int64_t step = 1; step <= 6; ++step) Step(&graph, step);
  EXPECT_EQ(device_.captures, 0);
}

}  // namespace
}  // namespace mp::trainer
