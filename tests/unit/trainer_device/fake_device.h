// A device that counts what it is asked for. What a replay does is the test's to say.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <memory>
#include <vector>

#include "worker/trainer/device/device.h"

namespace mp::trainer {

class FakeDevice : public Device {
 public:
  int uploads = 0;  // begun
  int downloads = 0;
  int captures = 0;
  bool refuses = false;  // to record
  std::function<void()> on_replay;

  at::Device place() const override { return at::kCPU; }
  bool wants_pinned_memory() const override { return false; }
  std::unique_ptr<Upload> StartUpload(const at::Tensor& host) override {
    ++uploads;
    return std::make_unique<Arrived>(host.clone());
  }
  at::Tensor Download(const at::Tensor& tensor) override {
    ++downloads;
    return tensor.clone();
  }
  Memory memory() const override { return {}; }
  void ForbidWaits(bool /*forbidden*/) override {}
  std::unique_ptr<Graph> Capture(const std::function<void()>& work) override {
    ++captures;
    TORCH_CHECK(!refuses, "this can't be recorded");
    work();
    return std::make_unique<Recorded>(&on_replay);
  }

 private:
  struct Arrived : Upload {
    explicit Arrived(at::Tensor tensor_in) : tensor(std::move(tensor_in)) {}
    at::Tensor Get() override { return tensor; }
    at::Tensor tensor;
  };
  struct Recorded : Graph {
    explicit Recorded(const std::function<void()>* replay_in) : replay(replay_in) {}
    void Replay() override { (*replay)(); }
    const std::function<void()>* replay;
  };
};

}  // namespace mp::trainer
