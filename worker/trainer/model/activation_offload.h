// Activations that wait in host memory from forward to backward, as SageMaker model parallel v2's activation offloading
// with its activation_loading_horizon: backward takes them in the reverse order, so that whoever is taken has the next
// `horizon` ones brought back as well, while it computes.
//
// Thread-safety: one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "worker/trainer/device/device.h"

namespace mp::trainer {

class ActivationOffload {
 public:
  // `horizon` >= 1. `device` is not owned.
  ActivationOffload(int64_t horizon, Device* device) : horizon_(horizon), device_(device) {}

  // Takes a copy of x to the host. The ticket is for Take.
  size_t Put(const at::Tensor& x);
  // x again, once.
  at::Tensor Take(size_t ticket);

 private:
  struct Parked {
    at::Tensor host;
    std::unique_ptr<Device::Upload> upload;  // while it comes back
  };
  void StartUpload(Parked* parked);

  const int64_t horizon_;
  Device* const device_;
  std::vector<Parked> parked_;  // a stack; what was taken is empty
};

}  // namespace mp::trainer
