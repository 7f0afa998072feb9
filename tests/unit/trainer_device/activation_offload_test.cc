#include "worker/trainer/model/activation_offload.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/unit/trainer_device/fake_device.h"
#include "worker/trainer/model/activation_checkpointing.h"

namespace mp::trainer {
namespace {

TEST(ActivationOffloadTest, BringsBackTheHorizonAheadAndNoMore) {
  FakeDevice device;
  ActivationOffload offload(2, &device);
  std::vector<at::Tensor> kept;
  for (int i = 0; i < 6; ++i) {
    kept.push_back(at::full({4}, i));
    EXPECT_EQ(offload.Put(kept.back()), static_cast<size_t>(i));
  }
  EXPECT_EQ(device.downloads, 6);
  EXPECT_EQ(device.uploads, 0);
  // The one that is taken and two ahead; then one more each time, until none is left.
  const std::vector<int> begun = {3, 4, 5, 6, 6, 6};
  for (size_t taken = 0; taken < 6; ++taken) {
    EXPECT_TRUE(at::equal(offload.Take(5 - taken), kept[5 - taken]));
    EXPECT_EQ(device.uploads, begun[taken]) << taken;
  }
  EXPECT_EQ(offload.Put(kept[0]), 0U);  // the next micro-batch begins anew
}

TEST(ActivationOffloadTest, ATicketIsGoodOnce) {
  FakeDevice device;
  ActivationOffload offload(1, &device);
  const size_t first = offload.Put(at::ones({1}));
  const size_t second = offload.Put(at::ones({1}));
  offload.Take(first);
  EXPECT_THROW(offload.Take(first), c10::Error);
  offload.Take(second);
  EXPECT_THROW(offload.Take(second), c10::Error);
}

TEST(ActivationOffloadTest, GradientsAreThoseOfKeptActivations) {
  FakeDevice device;
  ActivationOffload offload(1, &device);
  at::manual_seed(1);
  const at::Tensor x = at::randn({8});
  const auto gradient = [&](ActivationOffload* offloading) {
    at::Tensor leaf = x.clone().set_requires_grad(true);
    at::Tensor y = leaf;
    for (int layer = 0; layer < 3; ++layer) {
      y = Checkpointed([](const at::Tensor& in) { return in.sin() * in; }, y, nullptr, offloading);
    }
    torch::autograd::backward({y.sum()});
    return leaf.grad();
  };
  EXPECT_TRUE(at::equal(gradient(nullptr), gradient(&offload)));
  EXPECT_EQ(device.downloads, 3);
}

}  // namespace
}  // namespace mp::trainer
