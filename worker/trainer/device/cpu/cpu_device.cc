#include "worker/trainer/device/cpu/cpu_device.h"

#include <utility>

#include "worker/trainer/device/cpu/memory.h"
#include "worker/trainer/device/cpu/wait_watch.h"

namespace mp::trainer {
namespace {

class Here : public Device::Upload {
 public:
  explicit Here(at::Tensor tensor) : tensor_(std::move(tensor)) {}
  at::Tensor Get() override { return tensor_; }

 private:
  at::Tensor tensor_;
};

class CpuDevice : public Device {
 public:
  at::Device place() const override { return at::kCPU; }
  bool wants_pinned_memory() const override { return false; }
  std::unique_ptr<Upload> StartUpload(const at::Tensor& host) override { return std::make_unique<Here>(host); }
  at::Tensor Download(const at::Tensor& tensor) override { return tensor; }
  Memory memory() const override { return {ResidentBytes(), PeakResidentBytes()}; }
  void ForbidWaits(bool forbidden) override { waits_.Forbid(forbidden); }
  std::unique_ptr<Graph> Capture(const std::function<void()>& /*work*/) override {
    TORCH_CHECK(false, "a CPU has no graphs");
  }

 private:
  WaitWatch waits_;
};

}  // namespace

std::unique_ptr<Device> MakeCpuDevice() { return std::make_unique<CpuDevice>(); }

}  // namespace mp::trainer
